"""Worker that connects to MPS as CUDA does, or uses its GPU alone if no daemon answers.

    client.py RANK:ROUND     this rank makes an illegal access in this round, after all have started

It writes its environment to environ-RANK.ROUND.json, and ends when the file "go" exists.
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
        if state["client"]:
            cuda_client.synchronize()


state = {**os.environ, "client": cuda_client.connect(), "cpus": sorted(os.sched_getaffinity(0))}
draft = Path(f"draft-{RANK}")
draft.write_text(json.dumps(state))
draft.rename(f"environ-{RANK}.{ROUND}.json")
if f"{RANK}:{ROUND}" in sys.argv:
    wait_for(f"environ-*.{ROUND}.json", int(os.environ["WORLD_SIZE"]))
    cuda_client.fault()
wait_for("go", 1)
