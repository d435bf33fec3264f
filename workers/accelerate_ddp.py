"""Train a small CNN on handwritten digits with Hugging Face Accelerate and its checkpoints.

    hpclaunch --nproc 2 --checkpoint-dir checkpoints/accelerate_ddp \
        workers/accelerate_ddp.py --dir checkpoints/accelerate_ddp

For Accelerate, the launcher looks like torchrun; `accelerate config` is not needed. `save_state`
writes a directory at the end of every epoch; after a restart, the training resumes from the newest
one to which every rank has written. When the end of the job is near, all ranks save at once and
exit. The data are scikit-learn's 1,797 digits of 8x8 pixels, so nothing is downloaded. It reaches
an accuracy above 0.95 on held-out digits.
"""

import argparse
import os
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

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


class Progress:
    """The number of steps done, which Accelerate saves and loads with the model."""

    steps = 0

    def state_dict(self) -> dict[str, int]:
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.steps = state["steps"]


@torch.no_grad()
def accuracy(accelerator: Accelerator, model: nn.Module, loader: DataLoader) -> float:
    """Return the accuracy over all digits, each counted once."""
    right = []
    for images, labels in loader:
        predicted = model(images).argmax(1)
        right.append(accelerator.gather_for_metrics(predicted == labels))
    return torch.cat(right).float().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=64, help="of all ranks together")
    parser.add_argument(
        "--dir", type=Path, default="checkpoints/accelerate_ddp", help="where to save"
    )
    args = parser.parse_args()

    accelerator = Accelerator(
        cpu=not torch.cuda.is_available(),
        # The same order of the digits with and without a restart.
        dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True),
    )
    set_seed(0)
    train, test = digits()
    size = max(1, args.batch_size // accelerator.num_processes)
    model = cnn()
    model, optimizer, train_loader, test_loader = accelerator.prepare(
        model,
        torch.optim.Adam(model.parameters(), lr=8e-3),
        DataLoader(train, batch_size=size, shuffle=True),
        DataLoader(test, batch_size=size),
    )
    progress = Progress()
    accelerator.register_for_checkpointing(progress)
    if checkpoint := os.environ.get("HPCLAUNCH_CHECKPOINT"):
        accelerator.load_state(checkpoint)
    first, skip = divmod(progress.steps, len(train_loader))
    if checkpoint and accelerator.is_main_process:
        after = f"batch {skip} of epoch {first}" if skip else f"epoch {first - 1}"
        print(f"resuming after {after}")

    leaving = False
    for epoch in range(first, args.epochs):
        batches = accelerator.skip_first_batches(train_loader, skip)
        batches.set_epoch(epoch)
        skip = 0
        for images, labels in batches:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            accelerator.backward(loss)
            optimizer.step()
            progress.steps += 1
            if leaving := due():  # the end of the job is near
                break
        if not leaving:
            reached = accuracy(accelerator, model, test_loader)
            if accelerator.is_main_process:  # Accelerate's own print is once per node
                print(f"epoch {epoch}: loss {loss.item():.4f}, accuracy {reached:.4f}")
        accelerator.save_state(str(args.dir / f"epoch-{epoch}"))
        if leaving:
            break

    if not leaving:
        reached = accuracy(accelerator, model, test_loader)
        if accelerator.is_main_process:
            print(f"accuracy {reached:.4f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
