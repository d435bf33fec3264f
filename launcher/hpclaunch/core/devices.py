"""Which device a worker is to take: its LOCAL_RANK, and the GPUs that it sees."""

from __future__ import annotations

from .errors import UsageError


def local_rank(first: int, offset: int, nproc: int, *, visible: int) -> int:
    """What `torch.cuda.set_device(LOCAL_RANK)` needs to hold, for the worker at `offset`.

    `first` is the position of the agent's first worker on its node, `visible` the number of GPUs
    that the agent sees. Where each task has GPUs of its own (--gpus-per-task), the indices of all
    tasks begin at 0, and a position beyond them would be an invalid device ordinal.
    """
    own = nproc <= visible < first + nproc
    return offset if own else first + offset


def only_device(local: int, selection: str | None) -> str:
    """CUDA_VISIBLE_DEVICES for one worker under --virtual-local-rank, where LOCAL_RANK is 0.

    `selection` is the agent's own value. As torchrun has it: the entry at the local rank.
    """
    if selection is None:
        return str(local)
    entries = [entry.strip() for entry in selection.split(",")]
    if local >= len(entries):
        raise UsageError(
            f"--virtual-local-rank: local rank {local} has no GPU, CUDA_VISIBLE_DEVICES="
            f"{selection} names {len(entries)}: start fewer workers with --nproc"
        )
    return entries[local]
