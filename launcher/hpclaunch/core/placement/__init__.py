"""Who gets what: ranks, GPUs, CPUs, and the environment of a worker."""
