#!/bin/bash
#SBATCH --nodes 1
#SBATCH --tasks-per-node=2

srun hpclaunch checkpoint.py
