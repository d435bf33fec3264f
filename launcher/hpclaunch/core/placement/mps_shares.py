"""MPS: which GPUs need a control daemon, and the environment of a worker that uses one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..protocol.model import Share, Shares
from ..protocol.node_facts import ForeignMpsRefused, ForeignMpsUsed, MpsNote, TimeSlices
from ..protocol.values import value
from ..protocol.wording import some
from .devices import Gpu

CONTROL = "nvidia-cuda-mps-control"
PIPES = "CUDA_MPS_PIPE_DIRECTORY"
THREADS = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
MEMORY = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
NAMED = 3  # GPUs named in one message


@value(frozen=True)
class Settings:
    """The user's options."""

    mode: str = "auto"  # auto, on or off
    threads: str = "auto"  # or the percentage of a GPU's threads that each client may use
    memory: str = ""  # the memory that each client may use on each GPU: "4G"; "" for no limit


@value(frozen=True)
class MpsSupport:
    """The MPS installation of this node. The default is a node without MPS."""

    control: str = ""  # the path of nvidia-cuda-mps-control; "" if there is none
    foreign: str = ""  # the pipe directory of a running foreign daemon; "" for none
    refused: str = ""  # why a running foreign daemon is not used; "" if none is refused


@value(frozen=True)
class Group:
    """The GPUs of one daemon, normally a single GPU. Its clients are the workers that have exactly
    these GPUs.
    """

    gpus: tuple[Gpu, ...]
    clients: int
    owned: bool  # this agent starts and ends the daemon

    @property
    def uuids(self) -> list[str]:
        return [gpu.uuid for gpu in self.gpus]


@value(frozen=True)
class Plan:
    """The daemons that one agent starts or uses. With an `error`, the launch cannot continue."""

    groups: tuple[Group, ...] = ()
    foreign: str = ""  # the pipe directory of the daemon that is used instead of our own
    notes: tuple[MpsNote, ...] = ()
    error: str = ""


def wanted(settings: Settings, shares: Shares) -> bool:
    """Return whether `plan` needs this node's `MpsSupport`, which takes long to determine. If not,
    pass `MpsSupport()` to `plan`.
    """
    if settings.mode == "auto":
        return any(share.gpus and share.sharers > 1 for share in shares.of)
    return settings.mode == "on" and any(share.gpus for share in shares.of)


def plan(
    settings: Settings, shares: Shares, gpus: Sequence[Gpu], found: MpsSupport, *, host: str
) -> Plan:
    """Decide which daemons this agent starts. `host` is for the notes.

    `gpus` are those of the task, to which the positions in `shares` refer. With MPS, a worker sees
    the GPUs of its group only, so with mode "on" the shares must be isolated.
    """
    there = _groups(shares, gpus)
    prohibited = [gpu for one in there for gpu in one.gpus if gpu.mode == "prohibited"]
    if prohibited:
        return Plan(
            error=f"{_named(prohibited)}: the compute mode is PROHIBITED, so that no program can "
            f"use it. {_default_mode(prohibited)}, or leave it out of CUDA_VISIBLE_DEVICES"
        )
    several = [one for one in there if one.clients > 1]
    if settings.mode == "off":
        return Plan(error=_alone(several, "--mps is off", "Use --mps auto"))
    candidates = there if settings.mode == "on" else several
    if not candidates:
        return Plan()
    if found.foreign:
        return Plan(foreign=found.foreign, notes=(ForeignMpsUsed(host, found.foreign),))
    in_the_way: dict[tuple[str, str], list[Group]] = {}
    groups = []
    for one in candidates:
        obstacle = _obstacle(one, settings, found)
        if obstacle:
            in_the_way.setdefault(obstacle, []).append(one)
        else:
            groups.append(one)
    notes: list[MpsNote] = [ForeignMpsRefused(host, found.refused)] if found.refused else []
    for (why, what_to_do), hit in in_the_way.items():
        those = [gpu for one in hit for gpu in one.gpus]
        if settings.mode == "on":
            return Plan(error=f"--mps on: {_named(those)}: {why}. {what_to_do}")
        error = _alone(hit, why, what_to_do)
        if error:
            return Plan(error=error)
        notes.append(TimeSlices(host, _names(those), why, what_to_do))
    return Plan(tuple(groups), notes=tuple(notes))


def without(
    settings: Settings, shares: Shares, gpus: Sequence[Gpu], why: str, *, host: str
) -> Plan:
    """Return the plan if the daemons cannot be started. `why` says why not."""
    if settings.mode == "on":
        return Plan(error=f"--mps on: {why}")
    several = [one for one in _groups(shares, gpus) if one.clients > 1]
    error = _alone(several, why, "Ask the administrator to look at it")
    names = _names([gpu for one in several for gpu in one.gpus])
    return Plan(error=error, notes=(TimeSlices(host, names, why),))


def pipes_of(share: Share, gpus: Sequence[Gpu], directories: Mapping[str, str]) -> str:
    """Return the pipe directory for a worker; "" if it runs without MPS.

    `directories` has the pipe directories of the groups that are ready, by group key. The key of a
    foreign daemon is "".
    """
    key = ",".join(gpus[i].uuid for i in share.gpus)
    return directories.get(key) or directories.get("", "")


def environment(
    settings: Settings,
    share: Share,
    gpus: Sequence[Gpu],
    directory: str,
    environ: Mapping[str, str],
) -> dict[str, str]:
    """Return the variables that make a worker a client of the daemon at `directory`.

    A thread percentage that Slurm or the user has set in `environ` remains, unless `settings` has
    one. GPUs are named by UUID, because an index might select another GPU in the daemon, which
    counts only the GPUs that it sees.
    """
    env = {PIPES: directory, "CUDA_VISIBLE_DEVICES": ",".join(gpus[i].uuid for i in share.gpus)}
    # NVIDIA advises twice the even share, because clients are seldom all busy at the same time.
    chosen = settings.threads != "auto"
    percentage = float(settings.threads) if chosen else 200 / share.sharers
    if chosen or (percentage < 100 and not environ.get(THREADS)):
        env[THREADS] = f"{percentage:.1f}".removesuffix(".0")
    if settings.memory:
        env[MEMORY] = ",".join(f"{i}={settings.memory}" for i in range(len(share.gpus)))
    return env


def _groups(shares: Shares, gpus: Sequence[Gpu]) -> list[Group]:
    leads = {share.gpus for share in shares.of if share.leads}
    sharers = {share.gpus: share.sharers for share in shares.of if share.gpus}
    return [Group(tuple(gpus[i] for i in own), n, own in leads) for own, n in sharers.items()]


def _obstacle(one: Group, settings: Settings, found: MpsSupport) -> tuple[str, str] | None:
    """Return why no daemon can be started for these GPUs, and what to do; None if one can."""
    if settings.mode == "auto" and any(gpu.mig for gpu in one.gpus):
        return "it is an instance of a GPU (MIG)", "--mps on starts a daemon for each instance"
    if not found.control:
        return (
            f"{CONTROL} is not in PATH",
            "It comes with NVIDIA's driver: ask the administrator, or in a container bind it and "
            "nvidia-cuda-mps-server from the host",
        )
    return None


def _alone(shared: list[Group], why: str, what_to_do: str) -> str:
    """Return the error for GPUs that workers cannot share by time slices either, since only one
    process at a time can use them; "" for none.
    """
    exclusive = [gpu for one in shared for gpu in one.gpus if gpu.mode == "exclusive"]
    if not exclusive:
        return ""
    return (
        f"{_named(exclusive)}: several workers cannot share it without MPS, since its compute mode "
        f"is EXCLUSIVE_PROCESS, and {why}. {what_to_do}, or start one worker per GPU, or: "
        f"{_default_mode(exclusive)}"
    )


def _default_mode(gpus: Sequence[Gpu]) -> str:
    if gpus[0].mig:
        return "Ask the administrator for the compute mode DEFAULT"
    indices = ",".join(dict.fromkeys(str(gpu.index) for gpu in gpus))
    return f"Ask the administrator for nvidia-smi -i {indices} -c DEFAULT"


def _names(gpus: Sequence[Gpu]) -> tuple[str, ...]:
    return tuple(gpu.name for gpu in gpus)


def _named(gpus: Sequence[Gpu]) -> str:
    return some(_names(gpus), NAMED)
