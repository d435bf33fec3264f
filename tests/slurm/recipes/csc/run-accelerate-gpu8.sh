#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=2
#SBATCH --gres=gpu:2

srun hpclaunch --nproc 2 mnist_accelerate.py --epochs=2
