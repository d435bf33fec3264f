"""Run a training script at a slow pace: paced_training.py SCRIPT ARGS

After each step, each rank sleeps for as many seconds as the file `pause` says, if it exists. It
writes the number of its steps to `steps-RANK-TIME`. At the end it writes a digest of the weights to
`result-RANK`. `trains-RANK` exists from the fifth step on.
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
count_file = Path(f"steps-{rank}-{time.time_ns()}")
steps: dict = {}  # by optimizer


def count(optimizer, *_):
    if not any(float(group["lr"]) for group in optimizer.param_groups):
        return  # torch.distributed.checkpoint makes a step with a rate of 0 before it loads
    steps[optimizer] = steps.get(optimizer, 0) + 1
    count_file.write_text(str(max(steps.values())))
    if steps[optimizer] == 5:
        Path(f"trains-{rank}").touch()
    with suppress(FileNotFoundError):
        time.sleep(float(pause.read_text()))


def digest():
    result = hashlib.sha256()
    for optimizer in steps:
        for parameter, state in optimizer.state.items():
            for tensor in (parameter, *state.values()):
                tensor = torch.as_tensor(tensor)
                local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
                result.update(local.detach().reshape(-1).view(torch.uint8).numpy().tobytes())
    return result.hexdigest()


# Slurm sends these signals to every process of a step. Only the launcher shall act on them.
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGUSR1, lambda *_: None)
register_optimizer_step_post_hook(count)
del sys.argv[0]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    Path(f"result-{rank}").write_text(digest())
