"""Train replicas of a small CNN that share one GPU: for models that keep a GPU mostly idle.

    hpclaunch --nproc 8 --checkpoint-dir checkpoints/mps_replicas \
        workers/mps_replicas.py --dir checkpoints/mps_replicas

With more workers than GPUs, hpclaunch starts MPS for them and stops it at the end. Compare with
`--mps off`: the last line has the images per second of all replicas. The replicas exchange
gradients over gloo, since nccl refuses several ranks on one GPU. Without a GPU, the script uses
CPUs.

Rank 0 saves a checkpoint at the end of every epoch; after a restart, the training resumes from it.
The data are scikit-learn's 1,797 digits of 8x8 pixels, so nothing is downloaded. It reaches an
accuracy above 0.95 on held-out digits.
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
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=16, help="of each replica")
    parser.add_argument(
        "--dir", type=Path, default="checkpoints/mps_replicas", help="where to save"
    )
    args = parser.parse_args()

    gpu = torch.cuda.is_available()
    if gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    device = torch.device("cuda" if gpu else "cpu")
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(0)
    train, test = digits()
    sampler = DistributedSampler(train, seed=0)
    loader = DataLoader(train, batch_size=args.batch_size, sampler=sampler)
    model = DistributedDataParallel(cnn().to(device))
    # With more replicas there are fewer steps, so each step is larger.
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3 * world**0.5)

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
    seconds = []  # the duration of each epoch, for all replicas
    for epoch in range(first, args.epochs):
        sampler.set_epoch(epoch)  # the same order with and without a restart
        began = time.monotonic()
        for images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
        last = loss.item()  # waits for the GPU
        dist.barrier()
        seconds.append(time.monotonic() - began)
        if rank == 0:
            reached = accuracy(model.module, test, device)
            print(f"epoch {epoch}: loss {last:.4f}, accuracy {reached:.4f}")
            state = {
                "model": model.module.state_dict(),
                "optimizer": optimizer.state_dict(),
                "epoch": epoch,
            }
            save(state, args.dir / f"epoch-{epoch}.pt")
        dist.barrier()  # no rank begins an epoch before the previous one is saved

    if rank == 0:
        print(f"accuracy {accuracy(model.module, test, device):.4f}")
        if warm := seconds[1:]:  # the first epoch includes the start of CUDA
            speed = len(sampler) * world * len(warm) / sum(warm)
            print(f"images/s {speed:.0f}")
    # Release DDP before the process group, or torch may hang: see elastic.py.
    del model
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
