#!/bin/bash
#SBATCH --nodes 1
#SBATCH --tasks-per-node=8 # This is the number of model replicas
#SBATCH --cpus-per-task=1
#SBATCH --time=0:05:00

echo "starting training..."
time srun --cpus-per-task=$SLURM_CPUS_PER_TASK hpclaunch gpu_mps.py --batch_size=16 $BACKEND
