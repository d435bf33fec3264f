"""A small data set and model of the recipes, the same on every rank and in every run."""

import torch
from torch import nn
from torch.utils.data import TensorDataset


def dataset(size=256):
    """Return images [size, 1, 8, 8] and their classes [size] by a fixed linear map."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(size, 1, 8, 8, generator=generator)
    classes = (images.flatten(1) @ torch.randn(64, 10, generator=generator)).argmax(1)
    return TensorDataset(images, classes)


def conv_part():
    return nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Flatten())


def mlp_part():
    return nn.Sequential(nn.Linear(8 * 64, 32), nn.ReLU(), nn.Linear(32, 10))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.mlp = conv_part(), mlp_part()

    def forward(self, x):
        return self.mlp(self.conv(x))


def checksum(parameters):
    """Return a number that is equal if all weights are."""
    with torch.no_grad():
        return sum(p.double().square().sum().item() for p in parameters)
