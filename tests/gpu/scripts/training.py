"""Train a small seeded model on the first GPU, or on the CPU, and print the exact bits of the loss.

    training.py [--steps 20] [--compile] [--save DIR] [--kill-at N] [--hang HOW] [--late SECONDS]
                [--pause SECONDS] [--backend NAME]

With --save, rank 0 saves after each step. In the first round, the last rank kills itself before
step N with --kill-at, and hangs before step 8 with --hang: it sleeps, or waits for a GPU that is
busy for minutes, in a collective or without one. With --late, the last rank is late in each step.
At the end, each rank prints the bits of its loss.
"""

import argparse
import contextlib
import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

CYCLES = 1 << 38  # minutes of a GPU


def hang(how: str) -> None:
    print(f"hangs: {how}", flush=True)
    if how == "sleep":
        time.sleep(3600)
    torch.cuda._sleep(CYCLES)
    if how == "collective":
        total = torch.ones(1, device="cuda")
        dist.all_reduce(total)
        print(total.item())
    torch.ones(1, device="cuda").sum().item()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--save", type=Path)
    parser.add_argument("--kill-at", type=int, default=-1)
    parser.add_argument("--hang", choices=["", "sleep", "collective", "kernel"], default="")
    parser.add_argument("--late", type=float, default=0.0)
    parser.add_argument("--pause", type=float, default=0.05, help="seconds for each step's data")
    parser.add_argument("--backend", default="gloo")
    args = parser.parse_args()
    gpu = torch.cuda.is_available()
    device = torch.device("cuda" if gpu else "cpu")
    dist.init_process_group(args.backend)
    rank, world = dist.get_rank(), dist.get_world_size()
    is_last, is_first_round = rank == world - 1, os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"

    torch.manual_seed(rank if world > 1 else 0)
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 8)).to(device)
    run = torch.compile(model) if args.compile else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    first = 0
    if saved := os.environ.get("HPCLAUNCH_CHECKPOINT"):
        state = torch.load(saved, map_location=device, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"]
        print(f"rank {rank} resumes at step {first}", flush=True)
    loss = torch.zeros(1)
    for step in range(first, args.steps):
        if is_last and is_first_round and step == args.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if is_last and is_first_round and args.hang and step == 8:
            hang(args.hang)
        time.sleep(args.pause + (args.late if is_last else 0.0))
        generator = torch.Generator().manual_seed(1000 + step)
        inputs = torch.randn(32, 64, generator=generator).to(device)
        optimizer.zero_grad()
        loss = run(inputs).square().mean()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        if args.save and rank == 0:
            args.save.mkdir(exist_ok=True)
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            draft = args.save / "draft"
            torch.save({**state, "step": step + 1}, draft)
            draft.rename(args.save / f"step-{step + 1:03}.pt")
    print(f"rank {rank}: loss {loss.item().hex()}", flush=True)
    flags = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.benchmark
    print(f"rank {rank}: flags {flags} {torch.get_num_threads()}", flush=True)
    with contextlib.suppress(RuntimeError):
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
