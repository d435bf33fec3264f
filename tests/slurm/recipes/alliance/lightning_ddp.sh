#!/bin/bash
#SBATCH --nodes 1
#SBATCH --gres=gpu:2
#SBATCH --tasks-per-node=2    # Request 1 process per GPU.

export TORCH_NCCL_ASYNC_HANDLING=1

srun hpclaunch lightning_ddp.py  --batch_size 32
