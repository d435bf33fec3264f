"""Train a small CNN on handwritten digits with Horovod over gloo: data parallel without DDP.

    hpclaunch --nproc 2 --checkpoint-dir checkpoints/horovod_ddp \
        workers/horovod_ddp.py --dir checkpoints/horovod_ddp

The launcher sets all variables that `hvd.init()` expects from horovodrun. MPI is not needed: build
Horovod with HOROVOD_WITH_GLOO=1, and for GPUs also with HOROVOD_GPU_OPERATIONS=NCCL.

Rank 0 saves a checkpoint at the end of every epoch; after a restart, the training resumes from it
with any number of workers. The data are scikit-learn's 1,797 digits of 8x8 pixels, so nothing is
downloaded. It reaches an accuracy above 0.95 on held-out digits.
"""

import argparse
import os
from pathlib import Path

import horovod.torch as hvd
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

HELD_OUT = 297


def digits() -> tuple[TensorDataset, TensorDataset]:
    """Return images [n, 1, 8, 8] from 0 to 1 and labels [n], for training and for testing."""
    data = load_digits()
    shuffled = torch.randperm(len(data.target), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1)[shuffled] / 16
    labels = torch.tensor(data.target)[shuffled]
    test, train = slice(HELD_OUT), slice(HELD_OUT, None)
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 2 * 2, 10),
    )  # fmt: skip


def save(state: dict, path: Path) -> None:
    """Write a temporary file and rename it, so that a file of this name is always complete."""
    draft = path.with_suffix(".tmp")
    with draft.open("wb") as f:
        torch.save(state, f)
        f.flush()
        os.fsync(f.fileno())
    draft.rename(path)


@torch.no_grad()
def accuracy(model: nn.Module, data: TensorDataset, device: torch.device) -> float:
    images, labels = (t.to(device) for t in data.tensors)
    return (model(images).argmax(1) == labels).float().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=64, help="of all ranks together")
    parser.add_argument("--dir", type=Path, default="checkpoints/horovod_ddp", help="where to save")
    args = parser.parse_args()

    hvd.init()
    rank, world = hvd.rank(), hvd.size()
    gpu = torch.cuda.is_available()
    if gpu:
        torch.cuda.set_device(hvd.local_rank())
    device = torch.device("cuda" if gpu else "cpu")

    torch.manual_seed(0)
    train, test = digits()
    sampler = DistributedSampler(train, num_replicas=world, rank=rank, seed=0)
    loader = DataLoader(train, batch_size=max(1, args.batch_size // world), sampler=sampler)
    model = cnn().to(device)
    # It averages gradients over the workers while others are still being computed.
    optimizer = hvd.DistributedOptimizer(
        torch.optim.Adam(model.parameters(), lr=8e-3), named_parameters=model.named_parameters()
    )

    first = 0
    if checkpoint := os.environ.get("HPCLAUNCH_CHECKPOINT"):
        state = torch.load(checkpoint, map_location="cpu", weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["epoch"] + 1
        if rank == 0:
            print(f"resuming after epoch {state['epoch']}")
        del state  # free this second copy of the weights

    args.dir.mkdir(parents=True, exist_ok=True)
    for epoch in range(first, args.epochs):
        sampler.set_epoch(epoch)  # the same order with and without a restart
        for images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
        if rank == 0:
            reached = accuracy(model, test, device)
            print(f"epoch {epoch}: loss {loss.item():.4f}, accuracy {reached:.4f}")
            state = {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "epoch": epoch,
            }
            save(state, args.dir / f"epoch-{epoch}.pt")
        hvd.barrier()  # no rank begins an epoch before the previous one is saved

    if rank == 0:
        print(f"accuracy {accuracy(model, test, device):.4f}")
    hvd.shutdown()


if __name__ == "__main__":
    main()
