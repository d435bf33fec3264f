"""Recipes of public cluster documentation, as users of these clusters write them.

Each site has a directory with scripts and job scripts. Only the launcher's name was changed in
them: `srun python x.py` has become `srun hpclaunch x.py`. Detours and mistakes are kept, since they
are what is tested. `shared` contains the common modules, `jobs` submits the job scripts. Sizes are
reduced, so that each runs in seconds on the CPU, with gloo.
"""
