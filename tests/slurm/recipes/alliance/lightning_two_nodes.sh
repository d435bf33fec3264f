#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=1
#SBATCH --gres=gpu:2

srun hpclaunch --checkpoint-dir ckpt --resume-with '--resume {checkpoint}' $*
