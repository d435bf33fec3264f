"""A pipeline of two parts of a model in one process, which is its own RPC peer."""
# ruff: noqa: T201

import argparse

import torch
import torch.distributed.rpc as rpc
from datautils import conv_part, dataset, mlp_part
from pipe import Pipe
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--batch_size", type=int, default=64)
parser.add_argument("--num_workers", type=int, default=0)


def main():
    args = parser.parse_args()
    rpc.init_rpc("worker", rank=0, world_size=1)

    torch.manual_seed(0)
    part1, part2 = conv_part(), mlp_part()
    net = Pipe(nn.Sequential(part1, part2), chunks=4)
    optimizer = torch.optim.SGD(net.parameters(), lr=args.lr)
    losses = []
    for _ in range(3):
        for images, classes in DataLoader(dataset(), args.batch_size):
            optimizer.zero_grad()
            loss = cross_entropy(net(images).local_value(), classes)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    print(f"loss from {losses[0]:.4f} to {losses[-1]:.4f}")
    rpc.shutdown()


if __name__ == "__main__":
    main()
