"""Training that says something at every step: chatty.py --steps N [--pad BYTES]."""
# ruff: noqa: T201 -- that is what it is for

import argparse
import time

import torch.distributed as dist


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--pad", type=int, default=0)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    for step in range(args.steps):
        time.sleep(0.05)
        print(f"rank {dist.get_rank()} step {step}{' ' * args.pad}", flush=True)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
