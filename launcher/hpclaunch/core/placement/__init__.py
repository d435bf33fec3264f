"""The share of each worker: its rank, GPUs, CPUs, environment, and place on the console."""
