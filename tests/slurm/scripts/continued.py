"""Train for N steps in several runs, always to the same weights: continued.py HOW --steps N

HOW is `signal` (a handler of SIGUSR1), `due`, `agreed` (all ranks exit after a step in which one of
them received SIGUSR1 or SIGTERM), `unaware`, which saves every 50 steps, or `idle`, which never
saves and ends by SIGTERM. Each run appends its first and last step to steps-RANK.txt. A digest of
the final weights is written to final.json. The file `pause` has the seconds to wait in each step.
"""

import argparse
import atexit
import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from hpclaunch.notice import due

parser = argparse.ArgumentParser()
parser.add_argument("how")
parser.add_argument("--steps", type=int)
args = parser.parse_args()

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
# A single parameter: DDP reorders several after its first step, so the first step of a run would
# sum gradients in another order than the same step in the middle of another run.
model = torch.nn.Linear(8, 2, bias=False)
trained = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10, gamma=0.99)
first = done = 0
if newest := os.environ.get("HPCLAUNCH_CHECKPOINT"):
    state = torch.load(newest, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    scheduler.load_state_dict(state["scheduler"])
    first = done = state["step"]


@atexit.register
def record_steps():
    with open(f"steps-{rank}.txt", "a") as f:
        f.write(f"{first} {done}\n")


def save():
    dist.barrier()
    if rank == 0:
        Path("checkpoints").mkdir(exist_ok=True)
        parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
        state = {name: part.state_dict() for name, part in parts.items()}
        torch.save({"step": done, **state}, "checkpoints/partial")
        os.replace("checkpoints/partial", f"checkpoints/step-{done}.pt")
    dist.barrier()


def save_and_leave(*_):
    save()
    dist.destroy_process_group()
    sys.exit(0)


if args.how == "signal":
    signal.signal(signal.SIGUSR1, save_and_leave)
# Slurm sends these signals to all processes of the step.
if args.how != "idle":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGUSR2, signal.SIG_IGN)
heard = torch.zeros(1)
if args.how == "agreed":
    for signum in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(signum, lambda *_: heard.fill_(1))
pause = Path("pause")
while done < args.steps:
    # The batch of a step depends on its number only, so all runs use the same batches.
    batch = torch.rand(4, 8, generator=torch.Generator().manual_seed(done)) + rank
    optimizer.zero_grad()
    trained(batch).square().sum().backward()
    optimizer.step()
    scheduler.step()
    done += 1
    if done == 20:
        Path(f"trains-{rank}").touch()
    time.sleep(float(pause.read_text()) if pause.exists() else 0)
    if args.how == "unaware" and done % 50 == 0:
        save()
    if args.how == "agreed":
        dist.all_reduce(some := heard.clone())
    if (args.how == "due" and due()) or (args.how == "agreed" and some):
        save_and_leave()
digest = hashlib.sha256(b"".join(t.numpy().tobytes() for t in model.state_dict().values()))
if rank == 0:
    Path("final.json").write_text(json.dumps({"step": done, "digest": digest.hexdigest()}))
dist.destroy_process_group()
