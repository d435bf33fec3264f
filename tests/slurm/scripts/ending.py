"""Train endlessly, and save when notice is given: ending.py HOW [stays] [light]

HOW is `signal` (a handler of SIGUSR1), `agreed` (all ranks save after a step in which one of them
received SIGUSR1), `alone` (each rank trains by itself, and saves when SIGUSR2 arrives), `due`,
`file`, or `unaware`. Each rank writes the step and a digest of what it saved to saved-RANK.json,
and exits, unless it `stays`. With `light`, a number takes the place of the model.
"""

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

how, stays = sys.argv[1], "stays" in sys.argv


class Model:
    """A model with optimizer, scheduler and random batches."""

    def __init__(self):
        torch.manual_seed(0)
        self.model = torch.nn.Linear(8, 2)
        if how != "alone":
            self.model = torch.nn.parallel.DistributedDataParallel(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 10)
        self.batches = torch.Generator().manual_seed(1)
        self.drawn = 0

    def train(self):
        batch = torch.rand(4, 8, generator=self.batches)
        self.drawn += 1
        self.optimizer.zero_grad()
        self.model(batch + rank).square().sum().backward()
        self.optimizer.step()
        self.scheduler.step()

    @property
    def steps(self):
        return self.scheduler.last_epoch

    def state(self):
        averages = [state["exp_avg"] for state in self.optimizer.state.values()]
        tensors = [*self.model.state_dict().values(), *averages]
        return b"".join(t.numpy().tobytes() for t in tensors)


class Number:
    """A number and its optimizer, for the stand-in for torch."""

    def __init__(self):
        self.number = torch.nn.Parameter(torch.tensor([0.0]))
        self.optimizer = torch.optim.SGD([self.number], lr=0.01)
        self.drawn = self.steps = 0

    def train(self):
        self.drawn += 1
        self.number.grad = torch.tensor([float(self.drawn + rank)])
        if how != "alone":
            dist.all_reduce(self.number.grad)
        self.optimizer.step()
        self.steps += 1

    def state(self):
        return repr(float(self.number[0])).encode()


dist.init_process_group("gloo")
rank = dist.get_rank()
training = Number() if "light" in sys.argv else Model()


def save(*_):
    """Save with collectives, as most scripts do: all ranks must call this at the same step."""
    state = training.state()
    digest = hashlib.sha256(state).hexdigest()
    saved = {"step": training.steps, "drawn": training.drawn, "digest": digest}
    if how != "alone":
        dist.barrier()
    if rank == 0:
        Path("checkpoints").mkdir(exist_ok=True)
        torch.save({"step": saved["step"], "state": state}, "checkpoints/partial")
        os.replace("checkpoints/partial", f"checkpoints/step-{saved['step']}.pt")
    if how != "alone":
        dist.barrier()
    Path(f"saved-{rank}.json").write_text(json.dumps(saved))
    if not stays:
        dist.destroy_process_group()
        sys.exit(0)


if how == "signal":
    signal.signal(signal.SIGUSR1, save)
if how == "alone":
    signal.signal(signal.SIGUSR2, save)
heard = torch.zeros(1)
if how == "agreed":
    signal.signal(signal.SIGUSR1, lambda *_: heard.fill_(1))
asked = False
while True:
    training.train()
    time.sleep(0.05)
    if training.drawn == 20:
        Path(f"trains-{rank}").touch()
    wanted = how == "due" and due()
    if how == "agreed":
        dist.all_reduce(some := heard.clone())
        wanted = bool(some)
    if how == "file":  # rank 0 decides
        found = torch.zeros(1)
        if rank == 0:
            found.fill_(os.path.exists(os.environ["HPCLAUNCH_NOTICE_FILE"]))
        dist.all_reduce(found)
        wanted = bool(found)
    if wanted and not asked:
        asked = True
        save()
