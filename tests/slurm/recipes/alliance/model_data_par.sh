#!/bin/bash
#SBATCH --nodes 2
#SBATCH --gres=gpu:4
#SBATCH --tasks-per-node=2 # Request one task per MODEL per node
#SBATCH --cpus-per-task=1

export MAIN_NODE=$(hostname)

echo "starting training..."

srun hpclaunch model_data_par.py --init_method tcp://$MAIN_NODE:3456 --world_size $SLURM_NTASKS  --batch_size 32
