"""Processes: the fork server, signals, and the CPUs that they may use."""
