"""The outside world: Slurm, the network, GPUs, processes, files. Each package here may import
`shared/`, but no other one of these.
"""
