"""Accelerate: the loop of one process, which it spreads over all that there are."""
# ruff: noqa: T201

import argparse

import torch
from accelerate import Accelerator
from datautils import Net, checksum, dataset
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader


def train(num_epochs):
    accelerator = Accelerator(cpu=True)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loader = DataLoader(dataset(), 32)
    loader, model, optimizer = accelerator.prepare(loader, model, optimizer)
    for epoch in range(num_epochs):
        losses = []
        for images, classes in loader:
            loss = cross_entropy(model(images), classes)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        accelerator.print(f"Epoch [{epoch + 1}/{num_epochs}], loss: {losses[-1]:.4f}")
    rank, world = accelerator.process_index, accelerator.num_processes
    print(f"rank {rank} is local {accelerator.local_process_index}, {accelerator.distributed_type}")
    print(f"rank {rank} of {world}: weights {checksum(model.parameters()):.9f}")
    accelerator.end_training()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", default=2, type=int, metavar="N")
    train(parser.parse_args().epochs)
