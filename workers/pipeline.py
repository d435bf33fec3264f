"""Train a small GPT with pipeline parallelism: each rank holds some layers of the model.

    hpclaunch --nproc 4 --checkpoint-dir checkpoints/pipeline \
        workers/pipeline.py --dir checkpoints/pipeline

A batch is divided into microbatches, so that all ranks work at the same time. `--schedule` selects
their order: all forward passes and then all backward passes (GPipe), alternating passes, which need
less memory (1F1B), or two stages per rank, which wait less (interleaved). All ranks save together
(torch.distributed.checkpoint, DCP), and another number of stages can resume from that. When the end
of the job is near, all ranks save at once and exit. The training text is the source code of
Python's standard library, byte by byte. With GPUs, the script uses nccl and bfloat16, else gloo. It
reaches a loss below 2.6 nats per byte on held-out text (a random guess has 5.5).
"""

import argparse
import os
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from hpclaunch.notice import due

BYTES = 256
CONTEXT = 64  # bytes that the model sees
HELD_OUT = 50_000  # bytes
BY_NAME = StateDictOptions(flatten_optimizer_state_dict=True)  # no two ranks share a key


def text() -> tuple[Tensor, Tensor]:
    """Return bytes [n], for training and for testing."""
    files = sorted(Path(os.__file__).parent.glob("*.py"))
    data = b"".join(file.read_bytes() for file in files)[:1_000_000]
    everything = torch.frombuffer(bytearray(data), dtype=torch.uint8).long()
    return everything[:-HELD_OUT], everything[-HELD_OUT:]


def batch(data: Tensor, seed: int, size: int) -> tuple[Tensor, Tensor]:
    """Return bytes [size, CONTEXT], and the next bytes: the same on all ranks."""
    random = torch.Generator().manual_seed(seed)
    places = torch.randint(len(data) - CONTEXT, (size, 1), generator=random) + torch.arange(CONTEXT)
    return data[places], data[places + 1]


class Embedding(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.byte, self.position = nn.Embedding(BYTES, width), nn.Embedding(CONTEXT, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.byte(x) + self.position.weight


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        split = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1))
        q, k, v = split.permute(2, 0, 3, 1, 4)  # each [sequences, heads, bytes, width / heads]
        attended = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


def gpt(width: int = 64, heads: int = 4, blocks: int = 6) -> nn.ModuleDict:
    """Return the layers of the model, in order.

    A model that is too large for a single rank is built under `torch.device("meta")`, and each rank
    initialises the weights of its own layers only.
    """
    torch.manual_seed(0)
    middle = [Block(width, heads) for _ in range(blocks)]
    head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, BYTES))
    return nn.ModuleDict(
        {str(i): layer for i, layer in enumerate((Embedding(width), *middle, head))}
    )


class Stage(nn.Module):
    """Consecutive layers of the model."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16, enabled=x.is_cuda):
            for layer in self.layers:
                x = layer(x)
            return x.float()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--schedule", choices=("gpipe", "1f1b", "interleaved"), default="1f1b")
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--save-every", type=int, default=10, help="steps")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--dir", type=Path, default="checkpoints/pipeline", help="where to save")
    args = parser.parse_args()
    if args.batch_size % args.microbatches:
        parser.error(f"--batch-size {args.batch_size} must be a multiple of {args.microbatches}")
    per_rank = 2 if args.schedule == "interleaved" else 1  # stages
    layers, stages = gpt(), per_rank * int(os.environ["WORLD_SIZE"])
    if len(layers) < stages:
        parser.error(f"{len(layers)} layers are too few for {stages} stages")

    gpu = torch.cuda.is_available()
    if gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    device = torch.device("cuda" if gpu else "cpu")
    dist.init_process_group("nccl" if gpu else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    is_last = rank == world - 1

    cuts = [len(layers) * n // stages for n in range(stages + 1)]
    mine, parts = nn.ModuleDict(), []
    for n in range(rank, stages, world):
        names = [str(i) for i in range(cuts[n], cuts[n + 1])]
        mine.update({name: layers[name].to(device) for name in names})
        parts.append(PipelineStage(Stage([mine[i] for i in names]), n, stages, device))

    def loss_of(logits: Tensor, following: Tensor) -> Tensor:
        return cross_entropy(logits.flatten(0, 1), following.flatten())

    if per_rank == 2:
        schedule = ScheduleInterleaved1F1B(parts, args.microbatches, loss_of)
    else:
        kind = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}[args.schedule]
        schedule = kind(parts[0], args.microbatches, loss_of)
    optimizer = torch.optim.AdamW(mine.parameters(), lr=1e-2)

    def run(pass_batch: Callable, data: Tensor, seed: int) -> Tensor:
        """Pass one batch from the first rank to the last; return the loss on the last, else 0."""
        x, following = (tensor.to(device) for tensor in batch(data, seed, args.batch_size))
        losses: list[Tensor] = []
        inputs = (x,) if rank == 0 else ()
        outputs = {"target": following, "losses": losses} if is_last else {}
        pass_batch(*inputs, **outputs)
        return torch.stack(losses).mean() if is_last else torch.zeros((), device=device)

    def state(steps: int) -> dict:
        """Return the state of this rank's layers, by names that no other rank has."""
        weights, moments = get_state_dict(mine, optimizer, options=BY_NAME)
        return {"model": weights, "optimizer": moments, "steps": steps}

    train, test = text()
    first = 0
    if checkpoint := os.environ.get("HPCLAUNCH_CHECKPOINT"):
        saved = state(0)
        dcp.load(saved, checkpoint_id=checkpoint)
        set_state_dict(
            mine,
            optimizer,
            model_state_dict=saved["model"],
            optim_state_dict=saved["optimizer"],
            options=BY_NAME,
        )
        first = saved["steps"]
        if rank == 0:
            print(f"resuming after step {first}")

    for step in range(first, args.steps):
        optimizer.zero_grad()
        loss = run(schedule.step, train, seed=step)
        optimizer.step()
        done, leaving = step + 1, due()  # due: the end of the job is near
        if done % args.save_every == 0 or done == args.steps or leaving:
            # DCP adds `.metadata` after all ranks have written: the checkpoint is complete then.
            dcp.save(state(done), checkpoint_id=args.dir / f"step-{done}")
            if is_last:
                print(f"step {done}: loss {loss.item():.4f}")
        if leaving:
            dist.destroy_process_group()
            return

    with torch.no_grad():
        reached = torch.stack([run(schedule.eval, test, seed) for seed in range(10)]).mean()
    if is_last:
        print(f"loss {reached.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
