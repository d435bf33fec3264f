"""Train a residual network on handwritten digits with DeepSpeed's ZeRO-3, for very large models.

    hpclaunch --nproc 2 --checkpoint-dir checkpoints/deepspeed_zero3 \
        workers/deepspeed_zero3.py --dir checkpoints/deepspeed_zero3

The parameters, gradients and optimizer state are divided among the workers, so a model may be
larger than the memory of a GPU. `--offload cpu` keeps them in the host's memory, `--offload nvme`
on its disk, in SLURM_TMPDIR or the temporary directory (this needs libaio with its headers).
Neither DeepSpeed's own launcher nor MPI is needed. Without a GPU, set DS_ACCELERATOR=cpu.

DeepSpeed saves a checkpoint at the end of every epoch, and writes its name to `latest` when it is
complete. After a restart, the training resumes from it with the same number of workers. (For
another number, `zero_to_fp32.py` in the checkpoint's directory converts it to plain weights.) When
the end of the job is near, all ranks save at once and exit. The data are scikit-learn's 1,797
digits of 8x8 pixels, so nothing is downloaded. It reaches an accuracy above 0.95 on held-out
digits.
"""

import argparse
import os
import tempfile
import warnings
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from hpclaunch.notice import due

HELD_OUT = 297
WIDTH = 256


def digits() -> tuple[TensorDataset, TensorDataset]:
    """Return pixels [n, 64] from 0 to 1 and labels [n], for training and for testing."""
    data = load_digits()
    shuffled = torch.randperm(len(data.target), generator=torch.Generator().manual_seed(0))
    pixels = torch.tensor(data.data, dtype=torch.float32)[shuffled] / 16
    labels = torch.tensor(data.target)[shuffled]
    test, train = slice(HELD_OUT), slice(HELD_OUT, None)
    return TensorDataset(pixels[train], labels[train]), TensorDataset(pixels[test], labels[test])


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mlp = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.mlp(x)


def configuration(batch_size: int, offload: str, gpu: bool) -> dict:
    """Return DeepSpeed's configuration; `batch_size` is that of all ranks together."""
    zero: dict = {"stage": 3}
    if offload != "none":
        place: dict = {"device": offload, "pin_memory": gpu}
        if offload == "nvme":
            place["nvme_path"] = os.environ.get("SLURM_TMPDIR") or tempfile.gettempdir()
        zero |= {"offload_param": place, "offload_optimizer": place}
    # DeepSpeed's own Adam, which must be compiled first, has no advantage without a GPU.
    adam = {"lr": 6e-4, "torch_adam": not gpu}
    return {
        "train_batch_size": batch_size,
        "bf16": {"enabled": gpu},
        "optimizer": {"type": "Adam", "params": adam},
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 1 << 30,
    }


@torch.no_grad()
def accuracy(engine: deepspeed.DeepSpeedEngine, data: TensorDataset) -> float:
    """Return the accuracy. All ranks must call this, since each has a part of every layer."""
    pixels, labels = (t.to(engine.device) for t in data.tensors)
    predicted = engine(pixels.to(next(engine.parameters()).dtype)).argmax(1)
    return (predicted == labels).float().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=128, help="of all ranks together")
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--offload", choices=("none", "cpu", "nvme"), default="none")
    parser.add_argument(
        "--dir", type=Path, default="checkpoints/deepspeed_zero3", help="where to save"
    )
    args = parser.parse_args()

    # torch warns at every call that DeepSpeed's collectives have new names.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")
    gpu = torch.cuda.is_available()
    deepspeed.init_distributed()
    rank, world = dist.get_rank(), dist.get_world_size()
    each = max(1, args.batch_size // world)
    config = configuration(each * world, args.offload, gpu)

    torch.manual_seed(0)
    train, test = digits()
    sampler = DistributedSampler(train, seed=0, drop_last=True)
    loader = DataLoader(train, batch_size=each, sampler=sampler, drop_last=True)
    with deepspeed.zero.Init(config_dict_or_path=config):  # no rank ever has the whole model
        blocks = [Block() for _ in range(args.blocks)]
        model = nn.Sequential(nn.Linear(64, WIDTH), *blocks, nn.Linear(WIDTH, 10))
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=config
    )
    dtype = next(engine.parameters()).dtype

    first = skip = 0  # the first epoch, and how many of its batches are done
    if checkpoint := os.environ.get("HPCLAUNCH_CHECKPOINT"):
        directory, tag = os.path.split(checkpoint)
        _, state = engine.load_checkpoint(directory, tag)
        first, skip = divmod(state["steps"], len(loader))
        if rank == 0:
            after = f"batch {skip} of epoch {first}" if skip else f"epoch {first - 1}"
            print(f"resuming after {after}")

    leaving = False
    for epoch in range(first, args.epochs):
        sampler.set_epoch(epoch)  # the same order with and without a restart
        for batch, (pixels, labels) in enumerate(loader, start=1):
            if batch <= skip:
                continue
            logits = engine(pixels.to(engine.device, dtype))
            loss = nn.functional.cross_entropy(logits.float(), labels.to(engine.device))
            engine.backward(loss)
            engine.step()
            if leaving := due():  # the end of the job is near
                break
        skip = 0
        if not leaving:
            reached = accuracy(engine, test)
            if rank == 0:
                print(f"epoch {epoch}: loss {loss.item():.4f}, accuracy {reached:.4f}")
        state = {"steps": epoch * len(loader) + batch}
        engine.save_checkpoint(args.dir, f"epoch-{epoch}", client_state=state)
        if leaving:
            break

    if not leaving:
        reached = accuracy(engine, test)
        if rank == 0:
            print(f"accuracy {reached:.4f}")
    engine.destroy()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
