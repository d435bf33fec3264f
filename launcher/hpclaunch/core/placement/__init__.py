"""What each worker gets: its rank, GPUs, CPUs and environment, and what the console shows of it."""
