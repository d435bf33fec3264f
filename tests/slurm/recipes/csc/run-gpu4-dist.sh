#!/bin/bash
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=4
#SBATCH --gres=gpu:4

srun hpclaunch --standalone --nnodes=1 --nproc_per_node=4 $*
