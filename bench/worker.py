"""The worker that is measured: writes the moment of its first all-reduce, then waits to be killed.

Times are of CLOCK_MONOTONIC, which all processes of a machine share.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
moment = time.monotonic()
rank, restarts = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
path = Path(sys.argv[1]) / f"{restarts}-{rank}"
path.with_suffix(".tmp").write_text(f"{moment} {os.getpid()}")
path.with_suffix(".tmp").rename(path)
while not (Path(sys.argv[1]) / "end").exists():
    time.sleep(0.02)
dist.destroy_process_group()
