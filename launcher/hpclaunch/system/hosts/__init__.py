"""Hosts: which ones take part, with Slurm or without, and the state that this one is in."""
