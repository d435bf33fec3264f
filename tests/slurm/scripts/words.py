"""Print the arguments and some variables of Slurm and the launcher, as one line of JSON."""

import json
import os
import sys

NAMES = ("RANK", "WORLD_SIZE", "SLURM_CPUS_PER_TASK", "SLURM_GPUS_ON_NODE")
printed = {name: os.environ.get(name) for name in NAMES} | {"args": sys.argv[1:]}
sys.stdout.write(f"{json.dumps(printed)}\n")
