"""DDP under torchrun: ranks from the environment, and a snapshot to resume from after a failure.

multinode.py [--batch_size N] EPOCHS SAVE_EVERY
"""
# ruff: noqa: T201

import argparse
import os

import torch
import torch.distributed as dist
from accident import accident
from datautils import Net, checksum, dataset
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

SNAPSHOT = "snapshot.pt"


class Trainer:
    def __init__(self, batch_size, save_every):
        self.local_rank = int(os.environ["LOCAL_RANK"])
        self.global_rank = int(os.environ["RANK"])
        self.save_every = save_every
        self.epochs_run = 0
        data = dataset()
        self.loader = DataLoader(data, batch_size, sampler=DistributedSampler(data))
        model = Net()
        if os.path.exists(SNAPSHOT):
            snapshot = torch.load(SNAPSHOT, map_location="cpu")
            model.load_state_dict(snapshot["MODEL_STATE"])
            self.epochs_run = snapshot["EPOCHS_RUN"]
            print(f"rank {self.global_rank} resumes at epoch {self.epochs_run}")
        self.model = DistributedDataParallel(model)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(self, epochs):
        for epoch in range(self.epochs_run, epochs):
            self.loader.sampler.set_epoch(epoch)
            for step, (images, classes) in enumerate(self.loader):
                if (epoch, step) == (2, 1):
                    accident(self.global_rank)
                self.optimizer.zero_grad()
                cross_entropy(self.model(images), classes).backward()
                self.optimizer.step()
            if self.local_rank == 0 and epoch % self.save_every == 0:  # on each node
                state = {"MODEL_STATE": self.model.module.state_dict(), "EPOCHS_RUN": epoch + 1}
                draft = f"{SNAPSHOT}.{self.global_rank}"
                torch.save(state, draft)
                os.replace(draft, SNAPSHOT)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("epochs", type=int)
    parser.add_argument("save_every", type=int)
    parser.add_argument("--batch_size", type=int, default=32)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    trainer = Trainer(args.batch_size, args.save_every)
    trainer.train(args.epochs)
    total = checksum(trainer.model.parameters())
    print(f"rank {trainer.global_rank} of {dist.get_world_size()}: weights {total:.9f}")
    dist.destroy_process_group()
