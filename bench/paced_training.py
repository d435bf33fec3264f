"""Runs a training script slowly: paced_training.py SCRIPT ARGS

Each rank waits after each of its steps for as long as the file `pause` says, if there is one. It
keeps the number of its steps in `steps-RANK-TIME`, and when it leaves it writes to `result-RANK`
what has become of the weights. `trains-RANK` is there once it trains.
"""

import hashlib
import os
import runpy
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

rank, pause = os.environ["RANK"], Path("pause")
made = Path(f"steps-{rank}-{time.time_ns()}")
steps: dict = {}  # by optimizer


def count(optimizer, *_):
    if not any(float(group["lr"]) for group in optimizer.param_groups):
        return  # torch.distributed.checkpoint makes such a step before it loads
    steps[optimizer] = steps.get(optimizer, 0) + 1
    made.write_text(str(max(steps.values())))
    if steps[optimizer] == 5:
        Path(f"trains-{rank}").touch()
    with suppress(FileNotFoundError):
        time.sleep(float(pause.read_text()))


def digest():
    found = hashlib.sha256()
    for optimizer in steps:
        for parameter, known in optimizer.state.items():
            for tensor in (parameter, *known.values()):
                tensor = torch.as_tensor(tensor)
                local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
                found.update(local.detach().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


# Slurm sends these to every process of a step, whatever the launcher makes of them.
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGUSR1, lambda *_: None)
register_optimizer_step_post_hook(count)
del sys.argv[0]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    Path(f"result-{rank}").write_text(digest())
