"""Worker of false_hangs.py: train with steps of 0.1 s, and do something slow. CASE SECONDS

In "save" and "sync", a write or an fsync stalls on the file system in the directory $STALLING.
"""

import os
import sys
import time

import torch
import torch.distributed as dist

STEPS = 30  # before the slow part, and again after it
PAUSE = 0.1  # seconds
SPARED = "access getattr open create flush release truncate readdir statfs"  # calls without delay


class Training:
    def __init__(self) -> None:
        self.model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.ones(8, 64)).sum().backward()
        self.optimizer.step()
        time.sleep(PAUSE)

    def steps(self, number: int) -> None:
        for _ in range(number):
            self.step()


def evaluation(seconds: float) -> None:
    """Evaluate a model on rank 0 while the other ranks wait."""
    layers = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(8)))
    began = time.monotonic()
    with torch.no_grad():
        while time.monotonic() < began + seconds:
            layers(torch.ones(64, 256))


def save(_: float) -> None:
    """Save a file in which one write stalls."""
    stall(SPARED + " fsync")
    with open(os.path.join(os.environ["STALLING"], "storage", "saved.pt"), "wb") as f:
        torch.save({"weights": torch.ones(1 << 20)}, f)


def sync(_: float) -> None:
    """Save a file whose fsync stalls."""
    stall(SPARED + " write")
    with open(os.path.join(os.environ["STALLING"], "storage", "saved.pt"), "wb") as f:
        torch.save({"weights": torch.ones(1 << 20)}, f)
        os.fsync(f.fileno())


def stall(spared: str) -> None:
    with open(os.path.join(os.environ["STALLING"], "stalls"), "w") as f:
        f.write(spared)


def callback(seconds: float) -> None:
    """Sleep, and print a line now and then."""
    for second in range(round(seconds)):
        if second % 5 == 0:
            print(f"has waited for an answer for {second} s", flush=True)
        time.sleep(1)


def compiling(seconds: float) -> None:
    """Compile one model after the other, with forward and backward pass."""
    began, width = time.monotonic(), 16
    while time.monotonic() < began + seconds:
        torch._dynamo.reset()
        layers = [torch.nn.Linear(width, width) for _ in range(20)]
        model = torch.nn.Sequential(*(part for one in layers for part in (one, torch.nn.GELU())))
        torch.compile(model)(torch.ones(4, width)).sum().backward()
        width += 1


OF_RANK_0 = {f.__name__: f for f in (evaluation, save, sync, callback)}


def main() -> None:
    case, seconds = sys.argv[1], float(sys.argv[2])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    training = Training()
    if case == "first-step":
        time.sleep(seconds)
    training.steps(STEPS)
    if case in OF_RANK_0 and rank == 0:
        OF_RANK_0[case](seconds)
    if case == "compile":
        compiling(seconds)
    if case == "load":
        training.steps(round(seconds / PAUSE))
    training.steps(STEPS)
    dist.destroy_process_group()


main()
