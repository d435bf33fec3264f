"""The outside world: Slurm, the network, GPUs, processes, files. One file per thing; apart from
`shared/`, and within `checkpoints/`, these modules do not import each other.
"""
