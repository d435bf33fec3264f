#!/bin/bash
#SBATCH --nodes 2
#SBATCH --tasks-per-node=1

srun hpclaunch rpc_ring.py
