#!/bin/bash
#SBATCH -t 60
#SBATCH -N 1
#SBATCH -n 4
#SBATCH --gres=gpu:4

hpclaunch --nnodes=1 --nproc_per_node=4 \
          --rdzv_id=$SLURM_JOB_ID \
          --rdzv_endpoint="localhost:1234" \
          fsdp_tp.py
