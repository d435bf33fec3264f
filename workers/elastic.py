"""Train a small CNN with any number of workers, which may change: the result stays the same.

    hpclaunch --nproc 2 --checkpoint-dir checkpoints/elastic \
        workers/elastic.py --dir checkpoints/elastic

The global batch size is constant. Each worker computes a share of the batch, and its gradient is
weighted by the size of the share, since shares may differ in size. A worker whose share does not
fit into its memory computes it in several parts (--micro-batch). So learning rate and schedule need
no change. The result is the same except for the rounding of sums, unless the model uses statistics
of the batch (BatchNorm) or random numbers (dropout).

Rank 0 saves a checkpoint every few steps and at the end, with the position in the order of the
digits. After a restart, the training resumes with the next batch, even within an epoch, with any
number of workers. When the end of the job is near, rank 0 saves at once, and all ranks exit. The
data are scikit-learn's 1,797 digits of 8x8 pixels, so nothing is downloaded. With GPUs, the script
uses nccl, else gloo. It reaches an accuracy above 0.95 on held-out digits.
"""

import argparse
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
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


class Shares:
    """A batch sampler that gives each rank its share of every batch.

    `epoch` and `batch` are the position of the training, and belong in the checkpoint. The order of
    the digits depends on the epoch only. An incomplete batch at the end of an epoch is dropped.
    """

    def __init__(self, length: int, size: int, rank: int, world: int) -> None:
        self.length, self.size, self.rank, self.world = length, size, rank, world
        self.epoch, self.batch = 0, 0

    def __len__(self) -> int:
        return self.length // self.size

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the indices of this rank's shares, for the rest of this epoch."""
        order = torch.randperm(self.length, generator=torch.Generator().manual_seed(self.epoch))
        for batch in order.split(self.size)[self.batch : len(self)]:
            yield batch[self.rank :: self.world].tolist()

    def step(self) -> int:
        """Count a batch as done; return the number of all batches so far."""
        self.batch += 1
        if self.batch == len(self):
            self.epoch, self.batch = self.epoch + 1, 0
        return self.epoch * len(self) + self.batch


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


def add_gradients(
    model: DistributedDataParallel,
    images: torch.Tensor,
    labels: torch.Tensor,
    batch_size: int,
    micro_batch: int,
) -> torch.Tensor:
    """Add the gradient of a global batch of `batch_size` digits, of which these [n] are a share.

    At most `micro_batch` of them go through the model at a time. Return the share's part of the
    mean loss of the batch.
    """
    total = torch.zeros((), device=images.device)
    parts = list(zip(images.split(micro_batch), labels.split(micro_batch), strict=True))
    for number, (inputs, targets) in enumerate(parts, start=1):
        last = number == len(parts)  # ranks may have different numbers of parts: sync at the last
        with contextlib.nullcontext() if last else model.no_sync():
            loss = nn.functional.cross_entropy(model(inputs), targets, reduction="sum") / batch_size
            (loss * dist.get_world_size()).backward()  # DDP averages, but the sum is needed
        total += loss.detach()
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=64, help="of all ranks together")
    parser.add_argument("--micro-batch", type=int, default=32, help="digits in a worker's memory")
    parser.add_argument("--save-every", type=int, default=10, help="steps")
    parser.add_argument("--dir", type=Path, default="checkpoints/elastic", help="where to save")
    args = parser.parse_args()

    train, test = digits()
    world = int(os.environ["WORLD_SIZE"])
    if not world <= args.batch_size <= len(train):
        parser.error(f"--batch-size must be from {world}, a digit for each worker, to {len(train)}")

    gpu = torch.cuda.is_available()
    device = torch.device(f"cuda:{os.environ['LOCAL_RANK']}" if gpu else "cpu")
    if gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if gpu else "gloo", device_id=device if gpu else None)
    rank = dist.get_rank()

    torch.manual_seed(0)
    shares = Shares(len(train), args.batch_size, rank, world)
    loader = DataLoader(train, batch_sampler=shares, pin_memory=gpu)
    model = DistributedDataParallel(cnn().to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    if checkpoint := os.environ.get("HPCLAUNCH_CHECKPOINT"):
        state = torch.load(checkpoint, map_location="cpu", weights_only=True)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        shares.epoch, shares.batch = state["epoch"], state["batch"]
        if rank == 0:
            print(f"resuming in epoch {shares.epoch} after {shares.batch} batches, ranks: {world}")
        del state  # free this second copy of the weights

    args.dir.mkdir(parents=True, exist_ok=True)
    leaving = False
    while (epoch := shares.epoch) < args.epochs:
        for images, labels in loader:
            optimizer.zero_grad()
            loss = add_gradients(
                model, images.to(device), labels.to(device), args.batch_size, args.micro_batch
            )
            optimizer.step()
            step, leaving = shares.step(), due()  # due: the end of the job is near
            if step % args.save_every == 0 or shares.epoch == args.epochs or leaving:
                if rank == 0:
                    state = {
                        "model": model.module.state_dict(),
                        "optimizer": optimizer.state_dict(),
                        "epoch": shares.epoch,
                        "batch": shares.batch,
                    }
                    save(state, args.dir / f"step-{step}.pt")
                dist.barrier()  # no rank continues before this step is saved
            if leaving:
                break
        if leaving:
            break
        dist.all_reduce(loss)
        if rank == 0:
            reached = accuracy(model.module, test, device)
            print(f"epoch {epoch}: loss {loss.item():.4f}, accuracy {reached:.4f}")

    if rank == 0 and not leaving:
        print(f"accuracy {accuracy(model.module, test, device):.4f}")
    # Release DDP before the process group. Otherwise it would wait for gloo's threads with the GIL
    # held, while they wait for the GIL to release the loss (pytorch/pytorch#56297).
    del model
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
