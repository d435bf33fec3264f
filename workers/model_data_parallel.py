"""Train a model that is split over two devices per worker, with DDP over the workers.

    hpclaunch --gpus-per-worker 2 --checkpoint-dir checkpoints/model_data_parallel \
        workers/model_data_parallel.py --dir checkpoints/model_data_parallel

This is for a model that does not fit into one GPU. Every batch is divided into parts, so that one
half of the model works on a part while the other half works on the next. Without GPUs, both halves
are on the CPU.

Rank 0 saves a checkpoint at the end of every epoch; after a restart, the training resumes from it.
The data are scikit-learn's 1,797 digits of 8x8 pixels, so nothing is downloaded. With GPUs, the
script uses nccl, else gloo. It reaches an accuracy above 0.95 on held-out digits.
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
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


class Halves(nn.Module):
    """A CNN on two devices: images on the first, logits on the second."""

    def __init__(self, first: torch.device, second: torch.device, parts: int) -> None:
        super().__init__()
        self.second, self.parts = second, parts
        self.front = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        ).to(first)  # fmt: skip
        self.back = nn.Sequential(
            nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(32 * 2 * 2, 10),
        ).to(second)  # fmt: skip

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        # Calls return before a GPU has done its work: from the second part on, both GPUs are busy.
        halfway = (self.front(part).to(self.second) for part in images.chunk(self.parts))
        return torch.cat([self.back(part) for part in halfway])


def save(state: dict, path: Path) -> None:
    """Write a temporary file and rename it, so that a file of this name is always complete."""
    draft = path.with_suffix(".tmp")
    with draft.open("wb") as f:
        torch.save(state, f)
        f.flush()
        os.fsync(f.fileno())
    draft.rename(path)


@torch.no_grad()
def accuracy(model: Halves, data: TensorDataset, first: torch.device) -> float:
    images, labels = data.tensors
    return (model(images.to(first)).argmax(1).cpu() == labels).float().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=64, help="of all ranks together")
    parser.add_argument(
        "--dir", type=Path, default="checkpoints/model_data_parallel", help="where to save"
    )
    parser.add_argument("--parts", type=int, default=4, help="of a batch")
    args = parser.parse_args()

    gpu = torch.cuda.is_available()
    if gpu and torch.cuda.device_count() < 2:
        parser.error("this script needs 2 GPUs per worker: start it with --gpus-per-worker 2")
    # With --gpus-per-worker, each worker sees only its own GPUs, as 0 and 1.
    names = ("cuda:0", "cuda:1") if gpu else ("cpu", "cpu")
    first_half, second_half = map(torch.device, names)
    dist.init_process_group("nccl" if gpu else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(0)
    train, test = digits()
    sampler = DistributedSampler(train, seed=0)
    loader = DataLoader(train, batch_size=max(1, args.batch_size // world), sampler=sampler)
    model = DistributedDataParallel(Halves(first_half, second_half, args.parts))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    first = 0
    if checkpoint := os.environ.get("HPCLAUNCH_CHECKPOINT"):
        state = torch.load(checkpoint, map_location="cpu", weights_only=True)
        model.module.load_state_dict(state["model"])
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
            logits = model(images.to(first_half))
            loss = nn.functional.cross_entropy(logits, labels.to(second_half))
            loss.backward()
            optimizer.step()
        if rank == 0:
            reached = accuracy(model.module, test, first_half)
            print(f"epoch {epoch}: loss {loss.item():.4f}, accuracy {reached:.4f}")
            state = {
                "model": model.module.state_dict(),
                "optimizer": optimizer.state_dict(),
                "epoch": epoch,
            }
            save(state, args.dir / f"epoch-{epoch}.pt")
        dist.barrier()  # no rank begins an epoch before the previous one is saved

    if rank == 0:
        print(f"accuracy {accuracy(model.module, test, first_half):.4f}")
    # Release DDP before the process group, or torch may hang: see elastic.py.
    del model
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
