#!/bin/bash
#SBATCH --job-name=ddp
#SBATCH -N 1
#SBATCH -n 4
#SBATCH --gres=gpu:4

echo "======== Run on multiple GPUs ======"
hpclaunch --nproc 1 multigpu.py --batch_size=32 3 2
