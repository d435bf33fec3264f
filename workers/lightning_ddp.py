"""Train a small CNN on handwritten digits with Lightning's Trainer and its own checkpoints.

    hpclaunch --nproc 2 --checkpoint-dir checkpoints/lightning_ddp \
        workers/lightning_ddp.py --dir checkpoints/lightning_ddp

For Lightning, the launcher looks like torchrun, so it starts no processes itself and ignores
Slurm's variables. ModelCheckpoint saves every epoch; after a restart, the training resumes from the
newest checkpoint. When the end of the job is near, all ranks save at once and exit. The data are
scikit-learn's 1,797 digits of 8x8 pixels, so nothing is downloaded. It reaches an accuracy above
0.95 on held-out digits.
"""

import argparse
import os
import signal
import sys
from collections.abc import Iterator
from itertools import islice

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from sklearn.datasets import load_digits
from torch import nn
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


class RestOfEpoch(DistributedSampler):
    """A sampler that skips the batches of the epoch that were done before a restart.

    Lightning itself would begin with the first batch again. `size` is the batch size of one rank.
    """

    def __init__(self, data: TensorDataset, trainer: pl.Trainer, size: int) -> None:
        super().__init__(data, trainer.world_size, trainer.global_rank, seed=0)
        self.progress, self.size = trainer.fit_loop.epoch_loop.batch_progress, size

    def __iter__(self) -> Iterator[int]:
        return islice(super().__iter__(), self.progress.current.processed * self.size, None)


class SaveAndLeave(pl.Callback):
    def __init__(self, directory: str) -> None:
        self.directory = directory

    def on_train_start(self, *_: object) -> None:
        # Slurm sends SIGTERM to all ranks when it preempts or requeues the job. Lightning's handler
        # would call a collective at once, while the ranks may be at different steps.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def on_train_batch_end(self, trainer: pl.Trainer, *_: object) -> None:
        if due():  # the end of the job is near
            trainer.save_checkpoint(f"{self.directory}/step={trainer.global_step}.ckpt")
            sys.exit()  # with trainer.should_stop, the epoch would count as done


class Digits(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.cnn = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(32 * 2 * 2, 10),
        )  # fmt: skip

    def training_step(self, batch: list[torch.Tensor], _index: int) -> torch.Tensor:
        images, labels = batch
        return nn.functional.cross_entropy(self.cnn(images), labels)

    def validation_step(self, batch: list[torch.Tensor], _index: int) -> None:
        images, labels = batch
        right = (self.cnn(images).argmax(1) == labels).float().mean()
        self.log("accuracy", right, sync_dist=True)

    def on_train_epoch_end(self) -> None:
        reached = self.trainer.callback_metrics["accuracy"]
        self.print(f"epoch {self.current_epoch}: accuracy {reached:.4f}")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=8e-3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=64, help="of all ranks together")
    parser.add_argument("--dir", default="checkpoints/lightning_ddp", help="where to save")
    args = parser.parse_args()

    pl.seed_everything(0, verbose=False)
    train, test = digits()
    size = max(1, args.batch_size // int(os.environ["WORLD_SIZE"]))
    trainer = pl.Trainer(
        accelerator="gpu" if torch.cuda.is_available() else "cpu",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
        strategy="ddp",
        max_epochs=args.epochs,
        callbacks=[SaveAndLeave(args.dir), ModelCheckpoint(args.dir, "{epoch}", save_top_k=-1)],
        num_sanity_val_steps=0,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    checkpoint = os.environ.get("HPCLAUNCH_CHECKPOINT")
    if checkpoint and trainer.is_global_zero:
        print(f"resuming from {os.path.basename(checkpoint)}")
    # Shuffles by epoch: the same order of the digits whether or not we were restarted.
    loader = DataLoader(train, batch_size=size, sampler=RestOfEpoch(train, trainer, size))
    model, held_out = Digits(), DataLoader(test, batch_size=99)
    trainer.fit(model, loader, held_out, ckpt_path=checkpoint or None)
    if "accuracy" not in trainer.callback_metrics:  # the last epoch is in the checkpoint already
        trainer.validate(model, held_out, verbose=False)
    if trainer.is_global_zero:
        print(f"accuracy {trainer.callback_metrics['accuracy']:.4f}")


if __name__ == "__main__":
    main()
