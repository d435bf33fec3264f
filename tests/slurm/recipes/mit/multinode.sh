#!/bin/bash
#SBATCH --job-name=ddp-2nodes
#SBATCH -N 2
#SBATCH -n 4
#SBATCH --gpus-per-node=2

echo "======== Run on multiple GPUs ======"
srun hpclaunch python multinode.py --batch_size=32 4 1
