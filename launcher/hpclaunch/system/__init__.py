"""The outside world: Slurm, the network, GPUs, processes, files. Of the other packages here, each
imports only `shared/`.
"""
