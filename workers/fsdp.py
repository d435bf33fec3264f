"""Train a small GPT with FSDP2: each rank holds a shard of the weights and of the optimizer state.

    hpclaunch --nproc 4 --checkpoint-dir checkpoints/fsdp workers/fsdp.py --dir checkpoints/fsdp

All ranks save their shards together (torch.distributed.checkpoint, DCP), and any number of ranks
can resume from them. When the end of the job is near, all ranks save at once and exit. The training
text is the source code of Python's standard library, byte by byte, so nothing is downloaded. With
GPUs, the script uses nccl and bfloat16, else gloo. It reaches a loss below 2.6 nats per byte on
held-out text (a random guess has 5.5).
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from hpclaunch.notice import due

BYTES = 256
CONTEXT = 64  # bytes that the model sees
HELD_OUT = 50_000  # bytes


def text() -> tuple[Tensor, Tensor]:
    """Return bytes [n], for training and for testing."""
    files = sorted(Path(os.__file__).parent.glob("*.py"))
    data = b"".join(file.read_bytes() for file in files)[:1_000_000]
    everything = torch.frombuffer(bytearray(data), dtype=torch.uint8).long()
    return everything[:-HELD_OUT], everything[-HELD_OUT:]


def batch(data: Tensor, seed: int, size: int) -> tuple[Tensor, Tensor]:
    """Return this rank's part of a batch, [about size / ranks, CONTEXT], and the next bytes.

    The global batch depends on the seed only, not on the number of ranks.
    """
    random = torch.Generator().manual_seed(seed)
    starts = torch.randint(len(data) - CONTEXT, (size, 1), generator=random)
    mine = starts[dist.get_rank() :: dist.get_world_size()] + torch.arange(CONTEXT)
    return data[mine], data[mine + 1]


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


class GPT(nn.Module):
    def __init__(self, width: int = 64, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.byte, self.position = nn.Embedding(BYTES, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, BYTES)

    def forward(self, x: Tensor, following: Tensor) -> Tensor:
        """Return the sum of the losses; x and the following bytes are [sequences, CONTEXT]."""
        h = self.byte(x) + self.position.weight
        for block in self.blocks:
            h = block(h)
        logits = self.head(self.norm(h)).float()
        return cross_entropy(logits.flatten(0, 1), following.flatten(), reduction="sum")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--save-every", type=int, default=10, help="steps")
    parser.add_argument("--batch-size", type=int, default=32, help="of all ranks together")
    parser.add_argument("--dir", type=Path, default="checkpoints/fsdp", help="where to save")
    args = parser.parse_args()
    world = int(os.environ["WORLD_SIZE"])
    if args.batch_size < world:
        parser.error(f"--batch-size {args.batch_size} is too small for {world} ranks")

    gpu = torch.cuda.is_available()
    if gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    device = torch.device("cuda" if gpu else "cpu")
    dist.init_process_group("nccl" if gpu else "gloo")
    rank = dist.get_rank()

    torch.manual_seed(0)
    model = GPT().to(device)
    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    how = {"mp_policy": precision} if gpu else {}
    for part in (*model.blocks, model):  # each is gathered before its use, and freed after it
        fully_shard(part, **how)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def loss_of(data: Tensor, seed: int) -> Tensor:
        """Return a loss whose mean over all ranks is that of the batch, even for unequal parts."""
        total = model(*(part.to(device) for part in batch(data, seed, args.batch_size)))
        return total * world / (args.batch_size * CONTEXT)

    def state(steps: int) -> dict:
        weights, moments = get_state_dict(model, optimizer)
        return {"model": weights, "optimizer": moments, "steps": steps}

    train, test = text()
    first = 0
    if checkpoint := os.environ.get("HPCLAUNCH_CHECKPOINT"):
        saved = state(0)
        dcp.load(saved, checkpoint_id=checkpoint)  # into the present shards
        set_state_dict(
            model, optimizer, model_state_dict=saved["model"], optim_state_dict=saved["optimizer"]
        )
        first = saved["steps"]
        if rank == 0:
            print(f"resuming after step {first} on {world} ranks")

    for step in range(first, args.steps):
        optimizer.zero_grad()
        loss = loss_of(train, seed=step)
        loss.backward()
        optimizer.step()
        done, leaving = step + 1, due()  # due: the end of the job is near
        if done % args.save_every == 0 or done == args.steps or leaving:
            # DCP adds `.metadata` after all ranks have written: the checkpoint is complete then.
            dcp.save(state(done), checkpoint_id=args.dir / f"step-{done}")
            if rank == 0:
                print(f"step {done}: loss {loss.item():.4f} on rank 0")
        if leaving:
            dist.destroy_process_group()
            return

    with torch.no_grad():
        reached = torch.stack([loss_of(test, seed) for seed in range(10)]).mean()
    dist.all_reduce(reached, dist.ReduceOp.SUM)
    if rank == 0:
        print(f"loss {reached.item() / world:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
