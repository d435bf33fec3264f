"""GPUs: their properties, and their distribution among the workers of a node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ..protocol.errors import UsageError
from ..protocol.model import NO_SHARES, Share, Shares
from ..protocol.values import value


@value(frozen=True)
class Gpu:
    """A GPU, or an instance of one (MIG), that a task may use."""

    entry: str  # as CUDA_VISIBLE_DEVICES names it for this task: "0", "GPU-...", "MIG-..."
    uuid: str  # unique on the whole node
    index: int = 0  # the number that NVML gives it, in the order of PCI addresses
    model: str = ""
    mig: bool = False
    mode: str = "default"  # the compute mode: default, exclusive or prohibited
    cpus: tuple[int, ...] = ()  # the CPUs nearest to it; () if unknown
    node: int = -1  # the nearest memory node; -1 if unknown

    @property
    def name(self) -> str:
        return f"MIG {self.uuid}" if self.mig else f"GPU {self.index}"


@value(frozen=True)
class Task:
    """One agent's task: the number of its workers, and the UUIDs of the GPUs that it may use."""

    nproc: int
    gpus: tuple[str, ...]


def share_out(tasks: Sequence[Task], *, per_worker: int, isolate: bool) -> list[Shares]:
    """Distribute the GPUs of one node. `tasks` are in the order of their local ranks.

    Tasks that may use the same GPUs are treated as one task. Worker k gets the k-th GPU. If there
    are more workers than GPUs, neighbours share one.

    Workers are isolated (each sees its own GPUs only) if a GPU is shared, if the local rank is not
    the index of the worker's GPU in its task, and on MIG instances, since CUDA shows a process only
    one of these. `set_device(LOCAL_RANK)` and `set_device(0)` then select the same GPU.
    """
    workers = Counter(dict.fromkeys((task.gpus for task in tasks), 0))
    for task in tasks:
        workers[task.gpus] += task.nproc
    taken: Counter[tuple[str, ...]] = Counter()
    held: list[list[tuple[int, ...]]] = []
    for task in tasks:
        first = taken[task.gpus]
        taken[task.gpus] += task.nproc
        held.append(
            [
                _gpus_of(first + offset, workers[task.gpus], len(task.gpus), per_worker)
                for offset in range(task.nproc)
            ]
        )
    users = Counter(
        tuple(task.gpus[i] for i in gpus)
        for task, mine in zip(tasks, held, strict=True)
        for gpus in mine
    )
    shared = any(n > 1 for gpus, n in users.items() if gpus)
    mig = any(gpu.startswith("MIG-") for task in tasks for gpu in task.gpus)
    isolated = isolate or len(workers) > 1 or shared or mig
    led: set[tuple[str, ...]] = {()}  # GPUs that have a leader; no worker leads without a GPU
    shares = []
    for task, mine in zip(tasks, held, strict=True):
        of = []
        for gpus in mine:
            names = tuple(task.gpus[i] for i in gpus)
            of.append(Share(gpus, users[names], leads=names not in led))
            led.add(names)
        shares.append(Shares(tuple(of), isolated) if task.gpus else NO_SHARES)
    return shares


def _gpus_of(position: int, workers: int, gpus: int, per_worker: int) -> tuple[int, ...]:
    groups = gpus // per_worker
    if not groups:
        return ()
    group = position if workers <= groups else position * groups // workers
    return tuple(range(group * per_worker, (group + 1) * per_worker))


def only_device(local: int, selection: str | None) -> str:
    """Return CUDA_VISIBLE_DEVICES for one worker under --virtual-local-rank, where LOCAL_RANK is 0.

    As with torchrun, it is the entry at the local rank in `selection`, the agent's own value (None
    if it is not set). Raises UsageError if there is no such entry.
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
