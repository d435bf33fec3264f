"""Whether a host and its GPUs are fit for training: takes readings, and returns findings."""
