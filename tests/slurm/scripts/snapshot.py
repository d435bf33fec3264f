"""Train with one snapshot, as PyTorch's tutorial on torchrun does: it is overwritten after every
epoch, and the script itself loads it if it exists.

    snapshot.py SNAPSHOT EPOCHS [--die EPOCH ...] [--again SNAPSHOT]

Rank 1 is killed in the middle of these epochs, in one round after the other. With --again, a second
training follows, with a snapshot of its own.

Each rank prints the epoch at which it starts; rank 0 prints the result of each training.
"""
# ruff: noqa: T201 -- the tests read the output

import argparse
import os
import signal

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def data() -> TensorDataset:
    inputs = torch.randn(256, 20, generator=torch.Generator().manual_seed(0))
    return TensorDataset(inputs, inputs.sum(1, keepdim=True))


class Trainer:
    def __init__(self, path: str) -> None:
        self.path = path
        self.rank = dist.get_rank()
        self.epochs_run = 0
        torch.manual_seed(0)
        model = nn.Linear(20, 1)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        if os.path.exists(path):
            snapshot = torch.load(path)
            model.load_state_dict(snapshot["MODEL_STATE"])
            self.optimizer.load_state_dict(snapshot["OPTIMIZER_STATE"])
            self.epochs_run = snapshot["EPOCHS_RUN"]
        print(f"rank {self.rank} starts at epoch {self.epochs_run}")
        self.model = DistributedDataParallel(model)
        dataset = data()
        self.loader = DataLoader(dataset, batch_size=16, sampler=DistributedSampler(dataset))

    def run_epoch(self, epoch: int, *, dies: bool) -> None:
        self.loader.sampler.set_epoch(epoch)
        for step, (inputs, targets) in enumerate(self.loader):
            if dies and step == 2:  # rank 0 has done a step of this epoch, so its save is complete
                os.kill(os.getpid(), signal.SIGKILL)
            self.optimizer.zero_grad()
            nn.functional.mse_loss(self.model(inputs), targets).backward()
            self.optimizer.step()

    def save_snapshot(self, epoch: int) -> None:
        snapshot = {
            "MODEL_STATE": self.model.module.state_dict(),
            "OPTIMIZER_STATE": self.optimizer.state_dict(),
            "EPOCHS_RUN": epoch + 1,
        }
        torch.save(snapshot, self.path)

    def train(self, epochs: int, deaths: list[int]) -> None:
        number = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
        dies_in = deaths[number] if number < len(deaths) and self.rank == 1 else None
        for epoch in range(self.epochs_run, epochs):
            self.run_epoch(epoch, dies=epoch == dies_in)
            if self.rank == 0:
                self.save_snapshot(epoch)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("snapshot")
    parser.add_argument("epochs", type=int)
    parser.add_argument("--die", type=int, nargs="*", default=[])
    parser.add_argument("--again", metavar="SNAPSHOT")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    for path in filter(None, (args.snapshot, args.again)):
        trainer = Trainer(path)
        trainer.train(args.epochs, args.die)
        if trainer.rank == 0:
            total = sum(p.detach().double().square().sum() for p in trainer.model.parameters())
            print(f"final {float(total)!r}")
    del trainer  # release DDP before the process group: see workers/elastic.py
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
