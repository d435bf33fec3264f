#!/bin/bash
#SBATCH --nodes 1
#SBATCH --tasks-per-node=1
#SBATCH --cpus-per-task=2 # change this parameter to 2,4,6,... to see the effect on performance
#SBATCH --mem=1G
#SBATCH --time=0:05:00

echo "starting training..."
time hpclaunch cifar10_cpu.py --num_workers=1
