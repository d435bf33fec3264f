"""GPUs: NVML, MPS, and a process that watches them."""
