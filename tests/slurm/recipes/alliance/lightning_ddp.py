"""Lightning with DDP on one node, with as many devices as --gpus says."""
# ruff: noqa: T201

import argparse

import pytorch_lightning as pl
import torch
from datautils import Net, checksum, dataset
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.01)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--batch_size", type=int, default=32)
parser.add_argument("--gpus", type=int, default=2, help="devices per node")


class LitNet(pl.LightningModule):
    def __init__(self, lr):
        super().__init__()
        self.net, self.lr = Net(), lr

    def training_step(self, batch, batch_idx):
        images, classes = batch
        return cross_entropy(self.net(images), classes)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.lr)


def main():
    args = parser.parse_args()
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=args.gpus,
        num_nodes=1,
        strategy="ddp",
        max_epochs=args.epochs,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
    )
    model = LitNet(args.lr)
    trainer.fit(model, DataLoader(dataset(), args.batch_size))
    rank, world = trainer.global_rank, trainer.world_size
    print(f"rank {rank} is of {type(trainer.strategy.cluster_environment).__name__}")
    print(f"rank {rank} of {world}: weights {checksum(model.parameters()):.9f}")


if __name__ == "__main__":
    main()
