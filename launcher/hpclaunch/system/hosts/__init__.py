"""Hosts: which ones take part, with Slurm or without, and the state of this one."""
