"""Hosts: Slurm, other machines, and what this one has and lacks."""
