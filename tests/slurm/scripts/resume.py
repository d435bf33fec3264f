"""Saves each of some steps, and resumes from the checkpoint that it is given.

resume.py --dir DIR --steps N    rank 0 saves DIR/step-1.pt to step-N.pt
          --each                 every rank does, for its own node
          --breaks NAME          nobody can load this one
"""

# ruff: noqa: T201 -- what a worker has to say goes to its standard output
import argparse
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

RANK = os.environ["RANK"]


def load_checkpoint(path: str, breaks: str) -> int:
    if not path:
        return 0
    if Path(path).name == breaks:
        raise RuntimeError(f"size mismatch in round {os.environ['TORCHELASTIC_RESTART_COUNT']}")
    return torch.load(path)["step"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--each", action="store_true")
    parser.add_argument("--breaks", default="")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    path = os.environ["HPCLAUNCH_CHECKPOINT"]
    done = load_checkpoint(path, args.breaks)
    print(f"rank {RANK} goes on from {Path(path).name or 'nothing'}", flush=True)
    for step in range(done + 1, args.steps + 1):
        if args.each or RANK == "0":
            draft = args.dir / "draft.tmp"
            torch.save({"step": step}, draft)
            draft.rename(args.dir / f"step-{step}.pt")
        dist.barrier()
    dist.destroy_process_group()


sys.exit(main())
