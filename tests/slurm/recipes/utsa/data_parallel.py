"""DataParallel if there are several devices, else the same model on the only one or the CPU."""
# ruff: noqa: T201

import torch
from datautils import Net, dataset
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
network = Net()
if torch.cuda.device_count() > 1:
    print("Let's use", torch.cuda.device_count(), "GPUs!")
    network = nn.DataParallel(network)
network.to(device)
optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.5)
losses = []
for epoch in range(1, 3):
    for images, classes in DataLoader(dataset(), 64, shuffle=True):
        optimizer.zero_grad()
        loss = cross_entropy(network(images.to(device)), classes.to(device))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"Train Epoch: {epoch} Loss: {loss.item():.6f}")
print(f"loss from {losses[0]:.4f} to {losses[-1]:.4f}")
