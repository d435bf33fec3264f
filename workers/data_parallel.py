"""Train a small CNN on handwritten digits with nn.DataParallel: one process for all GPUs of a node.

    hpclaunch --nproc 1 --checkpoint-dir checkpoints/data_parallel \
        workers/data_parallel.py --dir checkpoints/data_parallel

This is for existing scripts with nn.DataParallel. For a new script, start from ddp.py: with
nn.DataParallel, one Python thread per GPU waits for the same interpreter, the model is copied to
every GPU for every batch, the first GPU gathers all outputs and has less free memory than the
others, and a second node cannot be used.

The script saves a checkpoint at the end of every epoch; after a restart, the training resumes from
it. The data are scikit-learn's 1,797 digits of 8x8 pixels, so nothing is downloaded. It reaches an
accuracy above 0.95 on held-out digits. Without a GPU, the model runs on the CPU.
"""

import argparse
import os
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

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
    parser.add_argument("--batch-size", type=int, default=64, help="of all GPUs together")
    parser.add_argument(
        "--dir", type=Path, default="checkpoints/data_parallel", help="where to save"
    )
    args = parser.parse_args()
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        parser.error("this is for one worker: start it with --nproc 1, or use ddp.py")

    gpu = torch.cuda.is_available()
    device = torch.device("cuda" if gpu else "cpu")
    count = torch.cuda.device_count()
    print(f"one process, GPUs: {count}; with ddp.py each has a process of its own, which is faster")

    torch.manual_seed(0)
    train, test = digits()
    order = torch.Generator()
    loader = DataLoader(train, args.batch_size, shuffle=True, generator=order, pin_memory=gpu)
    model = nn.DataParallel(cnn().to(device))  # on all GPUs that the process sees
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    first = 0
    if checkpoint := os.environ.get("HPCLAUNCH_CHECKPOINT"):
        state = torch.load(checkpoint, map_location="cpu", weights_only=True)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["epoch"] + 1
        print(f"resuming after epoch {state['epoch']}")
        del state  # free this second copy of the weights

    args.dir.mkdir(parents=True, exist_ok=True)
    for epoch in range(first, args.epochs):
        order.manual_seed(epoch)  # the same order with and without a restart
        for batch in loader:
            images, labels = (t.to(device, non_blocking=True) for t in batch)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
        reached = accuracy(model.module, test, device)
        print(f"epoch {epoch}: loss {loss.item():.4f}, accuracy {reached:.4f}")
        state = {
            "model": model.module.state_dict(),
            "optimizer": optimizer.state_dict(),
            "epoch": epoch,
        }
        save(state, args.dir / f"epoch-{epoch}.pt")

    print(f"accuracy {accuracy(model.module, test, device):.4f}")


if __name__ == "__main__":
    main()
