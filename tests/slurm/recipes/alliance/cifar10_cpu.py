"""Training on the CPUs of one task, whose number is read from Slurm's variables."""
# ruff: noqa: T201

import argparse
import os

import torch
from datautils import Net, dataset
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--batch_size", type=int, default=64)
parser.add_argument("--num_workers", type=int, default=0)


def main():
    args = parser.parse_args()
    torch.set_num_threads(int(os.environ["SLURM_CPUS_PER_TASK"]))
    print(f"{torch.get_num_threads()} threads")
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=args.lr)
    loader = DataLoader(dataset(), args.batch_size, num_workers=args.num_workers)
    losses = []
    for _ in range(3):
        for images, classes in loader:
            loss = cross_entropy(net(images), classes)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    print(f"loss from {losses[0]:.4f} to {losses[-1]:.4f}")


if __name__ == "__main__":
    main()
