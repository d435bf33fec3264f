"""GPUs: which there are (NVML), a process that watches them, and MPS for those that are shared."""
