#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=1
#SBATCH --gres=gpu:2

export DS_ACCELERATOR=cpu
export PYTHONWARNINGS=ignore
export SLURM_TMPDIR=$PWD/tmp

srun hpclaunch python3 -u mnist_deepspeed.py --epochs=2 \
     --deepspeed --deepspeed_config ds_config.json
