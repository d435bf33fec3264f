"""Train a small Llama on a 2-D mesh: tensor parallel (TP) within a node, FSDP2 across nodes.

    hpclaunch --nproc 4 --checkpoint-dir checkpoints/fsdp_tp \
        workers/fsdp_tp.py --tp 2 --dir checkpoints/fsdp_tp

The ranks of a node divide every matrix product among them, and between the products each has a part
of the sequence; this traffic stays on NVLink. Each node has other data. The ranks of a node are
consecutive, so the mesh is a plain reshape. All ranks save their shards together
(torch.distributed.checkpoint, DCP), and a mesh of another shape can resume from them. When the end
of the job is near, all ranks save at once and exit. The training text is the source code of
Python's standard library, byte by byte. With GPUs, the script uses nccl and bfloat16, else gloo. It
reaches a loss below 2.5 nats per byte on held-out text (a random guess has 5.5).
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.functional import cross_entropy, scaled_dot_product_attention, silu

from hpclaunch.notice import due

BYTES = 256
CONTEXT = 64  # bytes that the model sees
HELD_OUT = 50_000  # bytes
HEADS = 8


def text() -> tuple[Tensor, Tensor]:
    """Return bytes [n], for training and for testing."""
    files = sorted(Path(os.__file__).parent.glob("*.py"))
    data = b"".join(file.read_bytes() for file in files)[:1_000_000]
    everything = torch.frombuffer(bytearray(data), dtype=torch.uint8).long()
    return everything[:-HELD_OUT], everything[-HELD_OUT:]


def batch(data: Tensor, seed: int, size: int, part: int, parts: int) -> tuple[Tensor, Tensor]:
    """Return one part of a batch, [size / parts, CONTEXT], and the next bytes."""
    random = torch.Generator().manual_seed(seed)
    starts = torch.randint(len(data) - CONTEXT, (size, 1), generator=random)
    mine = starts[part::parts] + torch.arange(CONTEXT)
    return data[mine], data[mine + 1]


def rotate(x: Tensor) -> Tensor:
    """Apply the rotary position embedding to x, [sequences, heads, bytes, width]."""
    half = x.shape[-1] // 2
    speeds = 10_000 ** (-torch.arange(half, device=x.device) / half)
    angles = torch.arange(x.shape[-2], device=x.device)[:, None] * speeds
    (a, b), cos, sin = x.float().chunk(2, -1), angles.cos(), angles.sin()
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.head_width = width // HEADS
        self.q, self.k, self.v, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """Attend with this rank's heads: all heads, divided among the ranks of a node."""
        q, k, v = (
            part(x).unflatten(-1, (-1, self.head_width)).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        attended = scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True)
        return self.out(attended.transpose(1, 2).flatten(2))


class SwiGLU(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.attention = nn.RMSNorm(width), Attention(width)
        self.norm2, self.mlp = nn.RMSNorm(width), SwiGLU(width, 3 * width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Llama(nn.Module):
    def __init__(self, width: int = 64, layers: int = 2) -> None:
        super().__init__()
        self.byte = nn.Embedding(BYTES, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, BYTES, bias=False)

    def forward(self, x: Tensor, following: Tensor) -> Tensor:
        """Return the mean loss; x and the following bytes are [sequences, CONTEXT]."""
        h = self.byte(x)
        for block in self.blocks:
            h = block(h)
        logits = self.head(self.norm(h)).float()
        return cross_entropy(logits.flatten(0, 1), following.flatten())


def shard(model: Llama, mesh: DeviceMesh, gpu: bool) -> None:
    """Shard each matrix by columns and the next one by rows, so that a pair needs one exchange.

    Norms and sums work on parts of the sequence, dimension 1.
    """
    part, whole = Shard(1), Replicate()
    gathered = PrepareModuleInput(input_layouts=(part,), desired_input_layouts=(whole,))
    columns, rows = ColwiseParallel(), RowwiseParallel(output_layouts=part)
    for block in model.blocks:
        plan = {
            **dict.fromkeys(("norm1", "norm2"), SequenceParallel()),
            **dict.fromkeys(("attention", "mlp"), gathered),
            **dict.fromkeys(("attention.q", "attention.k", "attention.v"), columns),
            **dict.fromkeys(("mlp.gate", "mlp.up"), columns),
            **dict.fromkeys(("attention.out", "mlp.down"), rows),
        }
        parallelize_module(block, mesh["tp"], plan)
    ends = {
        "byte": RowwiseParallel(input_layouts=whole, output_layouts=part),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=part, output_layouts=whole),
    }
    parallelize_module(model, mesh["tp"], ends)
    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    how = {"mp_policy": precision} if gpu else {}
    for module in (*model.blocks, model):
        fully_shard(module, mesh=mesh["dp"], **how)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tp", type=int, help="ranks that share a matrix (default: all of a node)")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--save-every", type=int, default=10, help="steps")
    parser.add_argument("--batch-size", type=int, default=32, help="of all ranks together")
    parser.add_argument("--dir", type=Path, default="checkpoints/fsdp_tp", help="where to save")
    args = parser.parse_args()
    world, tp = int(os.environ["WORLD_SIZE"]), args.tp or int(os.environ["LOCAL_WORLD_SIZE"])
    if world % tp or HEADS % tp:
        parser.error(f"--tp {tp} must divide the {world} ranks and the {HEADS} heads")
    parts = world // tp  # parts of the data
    if args.batch_size % parts:
        parser.error(f"--batch-size {args.batch_size} cannot be divided into {parts} parts")

    gpu = torch.cuda.is_available()
    if gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    device = torch.device("cuda" if gpu else "cpu")
    dist.init_process_group("nccl" if gpu else "gloo")
    rank = dist.get_rank()

    mesh = init_device_mesh(device.type, (parts, tp), mesh_dim_names=("dp", "tp"))
    part = mesh["dp"].get_local_rank()
    torch.manual_seed(0)
    model = Llama().to(device)
    shard(model, mesh, gpu)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def loss_of(data: Tensor, seed: int) -> Tensor:
        """Return the loss of this node's part of a batch, which all its ranks have."""
        mine = batch(data, seed, args.batch_size, part, parts)
        return model(*(tensor.to(device) for tensor in mine))

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
            print(f"resuming after step {first}")
    if rank == 0:
        print(f"{parts} x {tp} ranks (data x tensor parallel)")

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
