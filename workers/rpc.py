"""Train a small CNN on handwritten digits with a master that distributes work by RPC.

    hpclaunch --nproc 3 --checkpoint-dir checkpoints/rpc workers/rpc.py --dir checkpoints/rpc

Rank 0 has the model and the order of the digits. With torch.distributed.rpc, it sends each part of
a batch to the next rank that is free, and adds the gradients in the order of the parts: ranks may
differ in speed, and the result does not depend on their number. If all parts take the same time,
ddp.py needs less communication.

Rank 0 saves a checkpoint at the end of every epoch; after a restart, the training resumes from it.
The data are scikit-learn's 1,797 digits of 8x8 pixels, so nothing is downloaded. Tensors are sent
from CPU to CPU. The script reaches an accuracy above 0.95 on held-out digits.
"""

import argparse
import os
import queue
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.distributed import rpc
from torch.utils.data import TensorDataset

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


class Learner:
    """A copy of the model and the digits, which every rank has."""

    def __init__(self) -> None:
        gpu = torch.cuda.is_available()
        self.device = torch.device(f"cuda:{os.environ['LOCAL_RANK']}" if gpu else "cpu")
        torch.manual_seed(0)
        self.model = cnn().to(self.device)
        train, self.test = digits()
        self.images, self.labels = (t.to(self.device) for t in train.tensors)

    def gradients(self, chosen: torch.Tensor) -> list[torch.Tensor]:
        """Return the gradient of the summed loss of the `chosen` digits [n], for each parameter."""
        logits = self.model(self.images[chosen])
        loss = nn.functional.cross_entropy(logits, self.labels[chosen], reduction="sum")
        return [g.cpu() for g in torch.autograd.grad(loss, list(self.model.parameters()))]


learner: Learner  # this process's own, for the functions that other ranks call


def set_weights(weights: list[torch.Tensor]) -> None:
    with torch.no_grad():
        for mine, new in zip(learner.model.parameters(), weights, strict=True):
            mine.copy_(new)


def gradients(chosen: torch.Tensor) -> list[torch.Tensor]:
    return learner.gradients(chosen)


def step(
    optimizer: torch.optim.Optimizer, batch: torch.Tensor, parts: int, ranks: list[str]
) -> None:
    """Do one step of `optimizer` with the digits `batch` [n], whose parts the `ranks` compute."""
    parameters = list(learner.model.parameters())
    weights = [p.detach().cpu() for p in parameters]
    torch.futures.wait_all([rpc.rpc_async(rank, set_weights, (weights,)) for rank in ranks])
    free: queue.Queue[str] = queue.Queue()
    for rank in ranks:
        free.put(rank)
    answers = []
    for part in batch.chunk(parts):
        rank = free.get()
        answer = rpc.rpc_async(rank, gradients, (part,))
        answer.add_done_callback(lambda _, rank=rank: free.put(rank))
        answers.append(answer)
    of_parts = torch.futures.wait_all(answers)
    for parameter, *found in zip(parameters, *of_parts, strict=True):
        parameter.grad = (sum(found) / len(batch)).to(parameter.device)
    optimizer.step()


def lead(args: argparse.Namespace, ranks: list[str]) -> None:
    """Train, as rank 0."""
    model, device = learner.model, learner.device
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
        order = torch.Generator().manual_seed(epoch)  # the same with and without a restart
        for batch in torch.randperm(len(learner.labels), generator=order).split(args.batch_size):
            step(optimizer, batch, args.parts, ranks)
        print(f"epoch {epoch}: accuracy {accuracy(model, learner.test, device):.4f}")
        state = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "epoch": epoch,
        }
        save(state, args.dir / f"epoch-{epoch}.pt")

    print(f"accuracy {accuracy(model, learner.test, device):.4f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--parts", type=int, default=4, help="of a batch")
    parser.add_argument("--dir", type=Path, default="checkpoints/rpc", help="where to save")
    args = parser.parse_args()

    global learner
    learner = Learner()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    rpc.init_rpc(f"rank{rank}", rank=rank, world_size=world)  # at MASTER_ADDR:MASTER_PORT
    if rank == 0:
        lead(args, [f"rank{r}" for r in range(1, world)] or ["rank0"])
    rpc.shutdown()  # the other ranks answer until all ranks have called this


if __name__ == "__main__":
    main()
