#!/bin/bash
#SBATCH --nodes 1
#SBATCH --tasks-per-node=2

mkdir -p ckpt
srun hpclaunch --checkpoint-dir ckpt --resume-with '--resume {checkpoint}' \
     checkpoint.py --save ./ckpt/epoch-{epoch}.pt --tear
