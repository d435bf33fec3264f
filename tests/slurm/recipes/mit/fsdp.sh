#!/bin/bash
#SBATCH --job-name=fsdp
#SBATCH -N 1
#SBATCH -n 4
#SBATCH --gres=gpu:4

hpclaunch --nproc 1 fsdp.py
