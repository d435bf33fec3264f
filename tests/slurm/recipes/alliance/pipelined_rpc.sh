#!/bin/bash
#SBATCH --nodes 1
#SBATCH --gres=gpu:2 # request 2 GPUs
#SBATCH --tasks-per-node=1
#SBATCH --cpus-per-task=1

# This is needed to initialize RPC
export MASTER_ADDR=$(hostname)
export MASTER_PORT=34567

echo "starting training..."
time hpclaunch --nproc 1 pipelined_rpc.py --batch_size=64 --num_workers=0
