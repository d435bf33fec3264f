#!/bin/bash
#SBATCH --nodes 1
#SBATCH --tasks-per-node=1

srun hpclaunch cifar10_cpu.py
