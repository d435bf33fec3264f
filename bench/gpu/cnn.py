"""Train a small CNN at full speed; the last line has the images per second of all replicas.

    hpclaunch --nproc 8 bench/gpu/cnn.py [--seconds 4] [--batch-size 512]

First every replica trains by itself, then gradients are averaged over gloo in every step. The
images are one batch of noise that stays on the GPU. Without a GPU, the CNN runs on CPUs.
"""

import argparse
import os
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WARM_UP = 10  # steps


def cnn() -> nn.Module:
    """Return the CNN of many tutorials, for images [n, 3, 32, 32]: it keeps a GPU mostly idle."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(),
        nn.Linear(84, 10),
    )  # fmt: skip


def trainer(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> Callable[[], None]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return step


def steps_per_second(step: Callable[[], None], seconds: float, wait: Callable[[], None]) -> float:
    """Return the speed of each replica while all of them run the same number of steps."""

    def timed(steps: int) -> float:
        dist.barrier()
        began = time.monotonic()
        for _ in range(steps):
            step()
        wait()
        dist.barrier()
        return time.monotonic() - began

    timed(WARM_UP)
    slowest = torch.tensor(timed(WARM_UP))
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    steps = max(WARM_UP, int(WARM_UP * seconds / slowest.item()))
    return steps / timed(steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--batch-size", type=int, default=512)
    args = parser.parse_args()
    gpu = torch.cuda.is_available()
    if gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    device = torch.device("cuda" if gpu else "cpu")
    wait = torch.cuda.synchronize if gpu else lambda: None
    dist.init_process_group("gloo")
    images = torch.randn(args.batch_size, 3, 32, 32, device=device)
    labels = torch.randint(10, (args.batch_size,), device=device)

    model = cnn().to(device)
    alone = steps_per_second(trainer(model, images, labels), args.seconds, wait)
    together = trainer(DistributedDataParallel(model), images, labels)
    averaged = steps_per_second(together, args.seconds, wait)
    if dist.get_rank() == 0:
        all_images = args.batch_size * dist.get_world_size()
        print(f"images/s {alone * all_images:.0f} {averaged * all_images:.0f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
