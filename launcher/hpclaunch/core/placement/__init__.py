"""The placement of each worker: its rank, GPUs, CPUs and environment, and its console output."""
