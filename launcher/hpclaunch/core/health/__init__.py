"""Health rules: they judge readings of a host and its GPUs, and return findings."""
