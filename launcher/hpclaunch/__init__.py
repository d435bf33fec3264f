"""hpclaunch: the elastic launcher for distributed PyTorch on Slurm, and on one machine."""

__version__ = "0.1.0"
