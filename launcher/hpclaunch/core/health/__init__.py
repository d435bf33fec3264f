"""Whether a host and its GPUs are fit for training: readings in, findings out."""
