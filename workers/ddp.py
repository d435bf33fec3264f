"""Train a small CNN on handwritten digits with DistributedDataParallel: the script to start from.

    hpclaunch --nproc 2 --checkpoint-dir checkpoints/ddp workers/ddp.py --dir checkpoints/ddp

Rank 0 saves a checkpoint at the end of every epoch; after a restart, the training resumes from it.
When the end of the job is near, rank 0 saves at once, and all ranks exit. The data are
scikit-learn's 1,797 digits of 8x8 pixels, so nothing is downloaded. With GPUs, the script uses
nccl, else gloo. It reaches an accuracy above 0.95 on held-out digits.
"""

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from hpclaunch.notice import due

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
    parser.add_argument("--dir", type=Path, default="checkpoints/ddp", help="where to save")
    parser.add_argument("--pause", type=float, default=0, help="seconds to wait in every epoch")
    args = parser.parse_args()

    gpu = torch.cuda.is_available()
    device = torch.device(f"cuda:{os.environ['LOCAL_RANK']}" if gpu else "cpu")
    if gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if gpu else "gloo", device_id=device if gpu else None)
    rank, world = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(0)
    train, test = digits()
    sampler = DistributedSampler(train, seed=0)
    loader = DataLoader(train, batch_size=max(1, args.batch_size // world), sampler=sampler)
    model = DistributedDataParallel(cnn().to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    first = skip = 0  # the first epoch, and how many of its batches are done
    if checkpoint := os.environ.get("HPCLAUNCH_CHECKPOINT"):
        state = torch.load(checkpoint, map_location="cpu", weights_only=True)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first, skip = divmod(state["steps"], len(loader))
        if rank == 0:
            after = f"batch {skip} of epoch {first}" if skip else f"epoch {first - 1}"
            print(f"resuming after {after}")
        del state  # free this second copy of the weights

    args.dir.mkdir(parents=True, exist_ok=True)
    leaving = False
    for epoch in range(first, args.epochs):
        sampler.set_epoch(epoch)  # the same order with and without a restart
        for batch, (images, labels) in enumerate(loader, start=1):
            if batch <= skip:
                continue
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
            if leaving := due():  # the end of the job is near
                break
        skip = 0
        time.sleep(args.pause)
        if rank == 0:
            if not leaving:
                reached = accuracy(model.module, test, device)
                print(f"epoch {epoch}: loss {loss.item():.4f}, accuracy {reached:.4f}")
            state = {
                "model": model.module.state_dict(),
                "optimizer": optimizer.state_dict(),
                "steps": epoch * len(loader) + batch,
            }
            save(state, args.dir / f"epoch-{epoch}.pt")
        dist.barrier()  # no rank begins an epoch before the previous one is saved
        if leaving:
            break

    if rank == 0 and not leaving:
        print(f"accuracy {accuracy(model.module, test, device):.4f}")
    # Release DDP before the process group, or torch may hang: see elastic.py.
    del model
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
