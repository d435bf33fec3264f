"""A worker that uses CUDA, as far as MPS can tell: a client, or alone where no daemon answers.

    client.py RANK:ROUND     that rank makes an illegal access in that round, once told-* are there

It tells in told-RANK.ROUND.json, and ends once the file "go" is there.
"""

import json
import os
import sys
import time
from pathlib import Path

import cuda_client

RANK, ROUND = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]


def wait_for(pattern: str, count: int) -> None:
    while len(list(Path().glob(pattern))) < count:
        time.sleep(0.02)
        if told["client"]:
            cuda_client.synchronize()


told = {**os.environ, "client": cuda_client.connect(), "cpus": sorted(os.sched_getaffinity(0))}
draft = Path(f"draft-{RANK}")
draft.write_text(json.dumps(told))
draft.rename(f"told-{RANK}.{ROUND}.json")
if f"{RANK}:{ROUND}" in sys.argv:
    wait_for(f"told-*.{ROUND}.json", int(os.environ["WORLD_SIZE"]))
    cuda_client.fault()
wait_for("go", 1)
