#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1

srun hpclaunch --no-python --nproc 2 build/main
