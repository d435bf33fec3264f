"""DeepSpeed: the engine of `deepspeed.initialize`, with ZeRO as the configuration says."""
# ruff: noqa: T201

import argparse
import os
from datetime import timedelta

import deepspeed
import torch
import torch.distributed as dist
from datautils import Net, dataset
from deepspeed.utils import set_log_level_from_string
from torch.nn.functional import cross_entropy


def train(args):
    set_log_level_from_string("info")
    deepspeed.init_distributed(timeout=timedelta(minutes=5))
    model = Net()
    engine, _, loader, _ = deepspeed.initialize(
        args=args, model=model, model_parameters=model.parameters(), training_data=dataset()
    )
    losses = []
    for _ in range(args.epochs):
        for images, classes in loader:
            loss = cross_entropy(engine(images), classes)
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
    rank, world = dist.get_rank(), dist.get_world_size()
    total = torch.zeros((), dtype=torch.float64)
    for parameter in engine.module.parameters():
        with deepspeed.zero.GatheredParameters(parameter):
            total += parameter.detach().double().square().sum()
    print(f"rank {rank} is local {engine.local_rank}, told {args.local_rank}")
    print(f"rank {rank}: ZeRO {engine.zero_optimization_stage()}, SLURM_TMPDIR is "
          f"{os.environ.get('SLURM_TMPDIR')}")  # fmt: skip
    print(f"rank {rank}: loss from {losses[0]:.4f} to {losses[-1]:.4f}")
    print(f"rank {rank} of {world}: weights {total:.9f}")
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", default=2, type=int, metavar="N")
    parser.add_argument("--local_rank", type=int, default=-1)
    parser = deepspeed.add_config_arguments(parser)
    train(parser.parse_args())


if __name__ == "__main__":
    main()
