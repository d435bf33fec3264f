"""Train a small CNN on handwritten digits with one GPU, or with the CPUs that Slurm has allocated.

    hpclaunch --nproc 1 --checkpoint-dir checkpoints/single \
        workers/single.py --dir checkpoints/single

The script saves a checkpoint at the end of every epoch; after a restart, the training resumes from
it. The data are scikit-learn's 1,797 digits of 8x8 pixels, so nothing is downloaded. It reaches an
accuracy above 0.95 on held-out digits. For several GPUs, use ddp.py.
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
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--dir", type=Path, default="checkpoints/single", help="where to save")
    args = parser.parse_args()
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        parser.error("this is for one worker: start it with --nproc 1, or use ddp.py")

    gpu = torch.cuda.is_available()
    device = torch.device("cuda" if gpu else "cpu")
    # os.cpu_count() counts the CPUs of the whole node, also those of other jobs.
    threads = int(os.environ.get("OMP_NUM_THREADS") or len(os.sched_getaffinity(0)))
    torch.set_num_threads(threads)
    print(f"training on {torch.cuda.get_device_name() if gpu else f'CPU, threads: {threads}'}")

    torch.manual_seed(0)
    train, test = digits()
    order = torch.Generator()
    loader = DataLoader(train, args.batch_size, shuffle=True, generator=order, pin_memory=gpu)
    model = cnn().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    first = 0
    if checkpoint := os.environ.get("HPCLAUNCH_CHECKPOINT"):
        state = torch.load(checkpoint, map_location="cpu", weights_only=True)
        model.load_state_dict(state["model"])
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
        reached = accuracy(model, test, device)
        print(f"epoch {epoch}: loss {loss.item():.4f}, accuracy {reached:.4f}")
        state = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "epoch": epoch,
        }
        save(state, args.dir / f"epoch-{epoch}.pt")

    print(f"accuracy {accuracy(model, test, device):.4f}")


if __name__ == "__main__":
    main()
