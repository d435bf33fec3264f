#!/bin/bash
#SBATCH --nodes 2
#SBATCH --gres=gpu:2
#SBATCH --tasks-per-node=2   # Request 1 process per GPU.
#SBATCH --time=0-03:00

export TORCH_NCCL_ASYNC_HANDLING=1
export MASTER_ADDR=$(hostname)

echo "r$SLURM_NODEID master: $MASTER_ADDR"
echo "r$SLURM_NODEID Launching python script"

srun hpclaunch ddp.py --init_method tcp://$MASTER_ADDR:3456 --world_size $((SLURM_NTASKS_PER_NODE * SLURM_JOB_NUM_NODES))  --batch_size 32
