#!/bin/bash
#SBATCH --nodes 2
#SBATCH --tasks-per-node=1

srun hpclaunch ddp.py --init_method file://$PWD/meeting-$SLURM_JOB_ID --world_size $SLURM_NTASKS
