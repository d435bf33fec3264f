"""The recipes of public cluster documentation, written the way their users write them.

A directory for each site, with scripts, and job scripts in which nothing but the launcher's name
is today's: `srun python x.py` has become `srun hpclaunch x.py`. Everything else stays as its users
have it, the detours and mistakes too: they are what is tested. `shared` holds what all of them
import, `jobs` submits them. Sizes are such that each runs in seconds on the CPU, with gloo.
"""
