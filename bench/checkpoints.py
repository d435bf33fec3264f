"""Measure the time to verify a checkpoint: by its structure, and by reading every byte.

    python bench/checkpoints.py [--files 4000] [--size 500] [--pieces 64] [--read 1] [--runs 5]

Structure: a checkpoint of --size GB in --files files, by torch.distributed.checkpoint (DCP) with
--pieces parts of tensors in each file, and by DeepSpeed's ZeRO-3. The files are sparse, so they fit
on a small disk; sizes, metadata and archives are what torch writes. The times are from the agent's
request to the answer of its checkpoint search process: the first search of a new process, its start
and imports included (started); the first search of a running one (first); repeated searches (best,
median, worst). As beside workers, the process has a low priority (nice 5): on a busy machine the
best time shows the cost.

Reading: --read GB by torch.save, from the page cache and from the disk, each byte against its
checksum; then once more, after the file was read.
"""

import argparse
import os
import select
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from hpclaunch.core.protocol.model import Look
from hpclaunch.system.checkpoints import ALL
from hpclaunch.system.checkpoints.client import CheckpointServiceClient
from hpclaunch.system.checkpoints.messages import Begun, FoundCheckpoint, Looked, Reply, Searched

GB = 10**9
TENSORS = 500  # per checkpoint, each divided among files
CHUNK = 64 << 20
WIDTH = 11


def dcp(directory: Path, files: int, size: int, pieces: int) -> None:
    """Write a sparse DCP checkpoint of `size` bytes: a model and its optimizer."""
    import pickle

    length = size // files // pieces
    numbers = length // 4
    metadata = Metadata({}, storage_data={})
    directory.mkdir(parents=True)
    for file in range(files):
        name = f"__{file}_0.distcp"
        with (directory / name).open("wb") as f:
            f.truncate(length * pieces)
        for piece in range(pieces):
            index = file * pieces + piece
            tensor = f"{('model', 'optim.state')[index % 2]}.layers.{index % TENSORS}.weight"
            at = torch.Size([index // TENSORS * numbers])
            if tensor not in metadata.state_dict_metadata:
                whole = torch.Size([files * pieces // TENSORS * numbers])
                metadata.state_dict_metadata[tensor] = TensorStorageMetadata(
                    TensorProperties(torch.float32), whole, []
                )
            chunk = ChunkStorageMetadata(at, torch.Size([numbers]))
            metadata.state_dict_metadata[tensor].chunks.append(chunk)
            key = MetadataIndex(tensor, at)
            metadata.storage_data[key] = _StorageInfo(name, piece * length, length)
    with (directory / ".metadata").open("wb") as f:
        pickle.dump(metadata, f)


def deepspeed(directory: Path, files: int, size: int, _: int) -> None:
    """Write a sparse ZeRO-3 checkpoint with two files per rank."""
    directory.mkdir(parents=True)
    ranks = files // 2
    numbers = torch.empty(size // files // 4)  # not a single page is touched
    counts = {"dp_world_size": ranks, "mp_world_size": 1}
    model = {"module": None, "param_shapes": [{"weight": torch.Size([1])}], **counts}
    optimizer = {"optimizer_state_dict": {"zero_stage": 3, "fp32_flat_groups": [numbers]}}
    with torch.serialization.skip_data():
        for rank in range(ranks):
            name = f"zero_pp_rank_{rank}_mp_rank_00"
            torch.save(model | {"buffer": numbers}, directory / f"{name}_model_states.pt")
            torch.save(optimizer, directory / f"bf16_{name}_optim_states.pt")
    (directory.parent / "latest").write_text(directory.name)


@contextmanager
def service(where: Path, verify: str = "auto") -> Iterator[CheckpointServiceClient]:
    it = CheckpointServiceClient(str(where), (), "", verify)
    try:
        yield it
    finally:
        it.close()


def answer(service: CheckpointServiceClient) -> Reply:
    """Return the next answer; ignore the message that a search has begun."""
    while True:
        select.select([service], [], [])
        for reply in service.replies():
            if not isinstance(reply, Begun):
                return reply
        if service.lost:
            raise SystemExit("the checkpoint search process has ended")


def search(service: CheckpointServiceClient) -> tuple[FoundCheckpoint, ...]:
    service.search(0, (), {})
    reply = answer(service)
    assert isinstance(reply, Searched), reply
    return reply.found


def timed_search(service: CheckpointServiceClient, *, finds: bool = True) -> float:
    """Return the duration of a search, in seconds."""
    began = time.monotonic()
    found = search(service)
    seconds = time.monotonic() - began
    assert [f.lacks for f in found] == [None] * finds, found
    return seconds


def structure(name: str, where: Path, runs: int) -> None:
    """Print the durations of searches for the checkpoint in this directory."""
    elsewhere = where.with_suffix(".aside")
    started, first, repeated = [], [], []
    for _ in range(runs):
        began = time.monotonic()
        with service(where) as it:
            timed_search(it)
            started.append(time.monotonic() - began)
        where.rename(elsewhere)
        with service(where) as it:
            timed_search(it, finds=False)
            elsewhere.rename(where)
            first.append(timed_search(it))
            repeated += [timed_search(it) for _ in range(runs)]
    median = statistics.median
    seen = [median(started), median(first), min(repeated), median(repeated), max(repeated)]
    print(name.ljust(WIDTH) + "".join(f"{1000 * s:{WIDTH}.0f}" for s in seen), flush=True)


def write(path: Path, size: int) -> None:
    """Save tensors of 64 MB with torch.save, and wait until they are on the disk."""
    block = torch.randint(0, 256, (CHUNK,), dtype=torch.uint8)
    state = {f"layer {i}": block.clone() for i in range(max(1, size // CHUNK))}
    path.parent.mkdir()
    torch.save({"model": state, "optimizer": {}}, path)
    with path.open("rb") as f:
        os.fsync(f.fileno())


def reading(path: Path) -> None:
    size = path.stat().st_size

    def read(service: CheckpointServiceClient, found: FoundCheckpoint, what: str) -> None:
        began = time.monotonic()
        service.look(0, Look(0, found.path, found.identity, found.size, found.time, ALL))
        reply = answer(service)
        seconds = time.monotonic() - began
        assert isinstance(reply, Looked), reply
        assert (reply.missing, reply.damage) == ("", ""), reply
        rate = f"{size / seconds / GB:.2f} GB/s" if "again" not in what else ""
        print(f"{what:44}{1000 * seconds:10.1f} ms{rate:>16}", flush=True)

    for where in ("from the page cache", "from the disk"):
        if where == "from the disk":
            with path.open("rb") as f:
                os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        with service(path.parent, verify="full") as it:
            (found,) = search(it)
            read(it, found, f"every byte, {where}")
            read(it, found, "again, after it was read")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=4000)
    parser.add_argument("--size", type=int, default=500, help="GB of the sparse checkpoint")
    parser.add_argument("--pieces", type=int, default=64, help="in each file of DCP")
    parser.add_argument("--read", type=float, default=1, help="GB of the file that is read")
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    base = Path(tempfile.mkdtemp(prefix="bench-"))
    try:
        print(f"by structure: {args.size} GB in {args.files} files; ms, of {args.runs} processes")
        columns = ("", "started", "first", "best", "median", "worst")
        print("".join(column.rjust(WIDTH) for column in columns), flush=True)
        for name, make in (("DCP", dcp), ("DeepSpeed", deepspeed)):
            where = base / name
            make(where / "global_step10", args.files, args.size * GB, args.pieces)
            structure(name, where, args.runs)
            shutil.rmtree(where)
        path = base / "read" / "step-10.pt"
        write(path, int(args.read * GB))
        print(f"\nby reading: {path.stat().st_size / GB:.2f} GB, {os.cpu_count()} CPUs")
        reading(path)
    finally:
        shutil.rmtree(base)


if __name__ == "__main__":
    main()
