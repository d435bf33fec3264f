"""Training for the ledger: it saves a checkpoint now and then, and fails once.

    costly.py --dir DIR --steps N [--until FILE] --save EVERY --fail STEP

Each step takes a tenth of a second. After N steps, it continues until FILE exists.
"""

import argparse
import itertools
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", type=Path, required=True)
    for name in ("steps", "save", "fail"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--until", type=Path)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    first, over = 0, torch.zeros(1)
    if checkpoint := os.environ["HPCLAUNCH_CHECKPOINT"]:
        first = torch.load(checkpoint)["step"]
    weights = torch.nn.Parameter(torch.zeros(8))
    optimizer = torch.optim.SGD([weights], lr=0.1)
    args.dir.mkdir(exist_ok=True)
    for step in itertools.count(first):
        time.sleep(0.1)
        if step == args.fail and not first and dist.get_rank() == 1:
            raise ValueError("a bad batch")
        weights.grad = torch.zeros(8).fill_(float(step))
        try:
            dist.all_reduce(weights.grad)
        except RuntimeError:  # the other rank has failed, and must end first
            time.sleep(30.0)
            raise
        optimizer.step()
        if (step + 1) % args.save == 0 and dist.get_rank() == 0:
            state = {"step": step + 1, "ballast": torch.zeros(500_000)}
            torch.save(state, args.dir / "draft")
            (args.dir / "draft").rename(args.dir / f"step-{step + 1}.pt")
        over.fill_(step + 1 >= args.steps and (args.until is None or args.until.exists()))
        dist.all_reduce(over)
        if over:
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
