"""DDP with the device of LOCAL_RANK, which is read first."""
# ruff: noqa: T201

import argparse
import os

import torch
import torch.distributed as dist
from datautils import Net, checksum, dataset
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


def train(num_epochs):
    local_rank = int(os.environ["LOCAL_RANK"])
    dist.init_process_group(backend="gloo")
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    data = dataset()
    loader = DataLoader(data, 32, shuffle=False, sampler=DistributedSampler(data))
    for epoch in range(num_epochs):
        for images, classes in loader:
            loss = cross_entropy(model(images), classes)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if local_rank == 0:
            print(f"Epoch [{epoch + 1}/{num_epochs}], loss: {loss.item():.4f}")
    total = checksum(model.parameters())
    print(f"rank {dist.get_rank()} of {dist.get_world_size()}: weights {total:.9f}")
    del model, optimizer
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", default=2, type=int, metavar="N")
    train(parser.parse_args().epochs)


if __name__ == "__main__":
    main()
