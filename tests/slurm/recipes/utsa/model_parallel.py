"""A model in two parts on two devices, with micro-batches."""
# ruff: noqa: T201

import torch
from datautils import conv_part, dataset, mlp_part
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

FIRST, SECOND = ("cuda:0", "cuda:1") if torch.cuda.device_count() > 1 else ("cpu", "cpu")


class Split(nn.Module):
    def __init__(self, split_size=16):
        super().__init__()
        self.seq1, self.seq2 = conv_part().to(FIRST), mlp_part().to(SECOND)
        self.split_size = split_size

    def forward(self, x):
        splits = iter(x.split(self.split_size))
        previous = self.seq1(next(splits)).to(SECOND)
        done = []
        for following in splits:
            done.append(self.seq2(previous))
            previous = self.seq1(following).to(SECOND)
        done.append(self.seq2(previous))
        return torch.cat(done)


torch.manual_seed(0)
network = Split()
optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.5)
losses = []
for _ in range(2):
    for images, classes in DataLoader(dataset(), 64):
        optimizer.zero_grad()
        loss = cross_entropy(network(images.to(FIRST)), classes.to(SECOND))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
print(f"loss from {losses[0]:.4f} to {losses[-1]:.4f}")
