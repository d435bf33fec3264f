"""Whether a GPU is fit for training: readings in, findings out.

FAIL: the training would break or its numbers be wrong, and the node is cordoned. WARN: said once.
A finding's `check` is the same for the same trouble of the same GPU, whatever its figures, so that
it can be told once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from ..protocol.wording import GIB, size
from .findings import Finding, Grade
from .xids import REBOOT, RESET, Fault, xid

# A CUDA context takes 0.3 to 0.6 GiB, and it is given back within a moment of its process's end:
# what is more than that, and stays, is missed by a model that fills the GPU.
MEMORY_LEFT = GIB
MPS = "nvidia-cuda-mps"  # how the names of MPS's own processes begin; they hold a context


class Slowdown(str, Enum):
    """Why a GPU runs slower than it could. A power cap is not among them: it is ordinary."""

    THERMAL = "it is too hot"  # NVML's software and hardware thermal slowdown
    POWER_BRAKE = "the power supply asks for it (power brake)"


class Recovery(Enum):
    """What the driver itself (from 565 on) says that a GPU needs: NVML_GPU_RECOVERY_ACTION_*."""

    NONE = 0
    RESET = 1
    REBOOT = 2
    DRAIN_P2P = 3
    DRAIN_AND_RESET = 4  # goes on working, but is to be reset soon: a row remap is pending
    RECOVER_IMEX = 5
    BUS_RESET = 6
    SYSTEM_REBOOT = 7


_UNUSABLE = {
    Recovery.RESET: RESET,
    Recovery.REBOOT: REBOOT,
    Recovery.BUS_RESET: RESET,
    Recovery.SYSTEM_REBOOT: REBOOT,
}


@dataclass(frozen=True, slots=True)
class Process:
    """One that has a context on the GPU."""

    pid: int
    memory: int | None = None  # bytes; None where the driver does not tell
    user: str = ""  # its owner; "" for a process that cannot be seen from here
    command: str = ""
    ours: bool = False  # of the agent's user
    dead: bool = False  # a worker of a round that has ended


@dataclass(frozen=True, slots=True)
class NvLink:
    up: bool
    errors: int = 0  # replays and recoveries since the driver was loaded


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One look at a GPU. What it or its driver does not tell is as if all were well."""

    name: str
    lost: str = ""  # why it cannot be read at all
    uncorrected: int = 0  # memory errors since the driver was loaded (volatile)
    pages_pending: bool = False
    rows_pending: bool = False
    rows_failed: bool = False
    recovery: Recovery = Recovery.NONE
    slow: tuple[Slowdown, ...] = ()
    temperature: int = 0
    links: tuple[NvLink, ...] = ()
    links_of_siblings: int = 0  # the most that are up on another GPU of the same model here
    processes: tuple[Process, ...] = ()
    used: int = 0  # bytes, without what the driver keeps for itself
    idle: bool = False  # no worker is running, and none should hold memory

    @property
    def unowned(self) -> int:
        """Bytes that no process holds; 0 where the driver does not tell what each holds."""
        held = [p.memory for p in self.processes]
        return max(0, self.used - sum(m for m in held if m)) if None not in held else 0


def judge(now: GpuReading, first: GpuReading | None = None) -> list[Finding]:
    """`first` is the earliest reading of the same GPU in this job."""
    if now.lost:
        return [Finding(now.name, f"does not answer: {now.lost}", Grade.FAIL, REBOOT)]
    return [*_memory_errors(now), *_links(now, first), *_slow(now), *_processes(now)]


def _memory_errors(now: GpuReading) -> Iterable[Finding]:
    # NVIDIA, GPU memory error management: an uncorrected error ends the process that read it, or
    # all on the GPU; none is a normal thing, and until the reset nobody knows what else it hit.
    if now.uncorrected:
        found = f"{now.uncorrected} uncorrected memory errors since the driver was loaded"
        yield Finding(f"{now.name} ECC", found, Grade.FAIL, RESET)
    # The same: a remap that failed is the criterion for a replacement (RMA).
    if now.rows_failed:
        found = "bad memory rows could not be remapped"
        advice = "the GPU is to be replaced, once its vendor's field diagnostic agrees"
        yield Finding(f"{now.name} rows", found, Grade.FAIL, advice)
    if now.recovery in _UNUSABLE:
        found = "the driver says that it cannot be used before a reset"
        yield Finding(f"{now.name} recovery", found, Grade.FAIL, _UNUSABLE[now.recovery])
    # The same: what is pending does no harm to those who use the GPU now, since the driver keeps
    # away from that memory; it only needs a reset to be done with.
    pending = now.rows_pending or now.pages_pending
    if pending or now.recovery in (Recovery.DRAIN_AND_RESET, Recovery.DRAIN_P2P):
        what = "row remap" if now.rows_pending else "page retirement"
        found = f"a {what} is pending" if pending else "the driver asks for a reset soon"
        advice = f"no harm for now; {RESET}"
        yield Finding(f"{now.name} pending", found, Grade.WARN, advice)


def _links(now: GpuReading, first: GpuReading | None) -> Iterable[Finding]:
    """A board may have fewer links in use than its chip has, and all of them down is a GPU without
    NVLink: only what was up before, or is up on the same model beside it, is missed.
    """
    earlier = first.links if first is not None else ()
    up = sum(link.up for link in now.links)
    down = [i for i, (a, b) in enumerate(zip(earlier, now.links, strict=False)) if a.up > b.up]
    fewer = 0 < up < now.links_of_siblings
    if down or fewer:
        which = f"link {', '.join(map(str, down))} went down" if down else "links are down"
        expected = max(sum(link.up for link in earlier), now.links_of_siblings)
        found = f"{which}: {up} of {expected} are up"
        advice = f"NCCL fails on it, or takes a slow way; {RESET}, and the fabric manager's log"
        yield Finding(f"{now.name} NVLink", found, Grade.FAIL, advice)
    # DCGM's health watch warns at the first replay or recovery. Both repair the transfer, so that
    # only those during the job matter, and only its speed suffers.
    grown = sum(
        b.errors - a.errors for a, b in zip(earlier, now.links, strict=False) if b.errors > a.errors
    )
    if grown:
        found = f"{grown} NVLink transfers were repeated during this job"
        advice = "collectives may be slow; if it goes on, nvidia-smi nvlink -e for the vendor"
        yield Finding(f"{now.name} NVLink errors", found, Grade.WARN, advice)


def _slow(now: GpuReading) -> Iterable[Finding]:
    # NVML's own reasons; each takes clocks well below the base clock, and one slow GPU holds up
    # all ranks of a synchronous training.
    for reason in now.slow:
        found = f"runs slower, since {reason.value}"
        if reason is Slowdown.THERMAL and now.temperature:
            found += f", {now.temperature} C"
        advice = "look at its cooling" if reason is Slowdown.THERMAL else "look at the node's power"
        advice += "; every step of the training waits for the slowest GPU"
        yield Finding(f"{now.name} slowdown {reason.name}", found, Grade.WARN, advice)


def _processes(now: GpuReading) -> Iterable[Finding]:
    for p in now.processes:
        if p.command.startswith(MPS):
            continue
        who = f"process {p.pid}" + (f" ({p.command})" if p.command else "")
        holds = "is on it" if p.memory is None else f"holds {size(p.memory)} of it"
        if p.user and not p.ours:
            found = f"{p.user}'s {who} {holds}"
            advice = "ask Slurm for GPUs of your own, or tell the administrator"
            yield Finding(f"{now.name} user {p.user}", found, Grade.WARN, advice)
        elif now.idle and p.dead:
            found = f"{who} of the last round still {holds}"
            advice = "it does not die: most likely the GPU or a file system hangs"
            yield Finding(f"{now.name} process {p.pid}", found, Grade.WARN, advice)
        elif now.idle and (p.memory or 0) >= MEMORY_LEFT:
            whose = f"your own {who}" if p.ours else f"{who}, which cannot be seen from here,"
            advice = f"kill {p.pid}, if it is left from an earlier run" if p.ours else ""
            found = f"{whose} {holds}"
            advice = advice or "another container or job is on the same GPU"
            yield Finding(f"{now.name} process {p.pid}", found, Grade.WARN, advice)
    if now.idle and now.unowned >= MEMORY_LEFT:
        found = f"{size(now.unowned)} are in use that no process owns, as far as can be seen"
        advice = f"left by a dead process, or held in another container; else {RESET}"
        yield Finding(f"{now.name} memory", found, Grade.WARN, advice)


def judge_survey(broken: str, found: int, expected: int | None) -> list[Finding]:
    """What did not answer when the GPUs were counted; `expected` is how many this task was given,
    None when nobody has said. One that is missed may be another job's.
    """
    fail = found > 0 if expected is None else found < expected
    advice = "look at nvidia-smi and dmesg on this host"
    return [Finding("GPUs", broken, Grade.FAIL if fail else Grade.WARN, advice)]


@dataclass(frozen=True, slots=True)
class XidSeen:
    """The driver's report of an error, and who was on the GPU (it does not say whose it was)."""

    uuid: str
    name: str
    number: int
    pids: tuple[int, ...] = ()

    @property
    def of_program(self) -> bool:
        """Its fault; whatever is anybody else's is a finding as well."""
        return xid(self.number).fault is Fault.PROGRAM

    def __str__(self) -> str:
        known = xid(self.number)
        return f"Xid {self.number} on {self.name}: {known.name}; {known.advice}"


class History:
    """What was read and told of some GPUs in this job: decides what is news."""

    def __init__(self) -> None:
        self.last: dict[str, GpuReading] = {}  # by name
        self._first: dict[str, GpuReading] = {}
        self._told: set[str] = set()
        self._fatal: dict[str, Finding] = {}  # Xids: over once they are told, but they still hold

    def answer(self, readings: Iterable[GpuReading]) -> list[Finding]:
        """All that speaks against a round; of the rest what was not told yet."""
        findings = [*self._judge(readings), *self._fatal.values()]
        fresh = self._fresh(findings)
        return [f for f in findings if f.grade is Grade.FAIL or f in fresh]

    def news(self, readings: Iterable[GpuReading]) -> list[Finding]:
        return self._fresh(self._judge(readings))

    def xid(self, name: str, number: int) -> list[Finding]:
        """Nothing for one of the program's fault: it does not speak against the node."""
        known = xid(number)
        if known.fault is Fault.PROGRAM:
            return []
        grade = Grade.FAIL if known.fatal else Grade.WARN
        found = f"Xid {number}, {known.name}"
        finding = Finding(f"{name} Xid {number}", found, grade, known.advice)
        if known.fatal:
            self._fatal[finding.check] = finding
        return self._fresh([finding])

    def may_be_given_back(self, reading: GpuReading) -> bool:
        """Whether memory is held that should not be, and was not waited for in vain before."""
        unowned = reading.unowned >= MEMORY_LEFT and f"{reading.name} memory" not in self._told
        return unowned or any(p.dead for p in reading.processes)

    def _judge(self, readings: Iterable[GpuReading]) -> list[Finding]:
        findings = []
        for reading in readings:
            self.last[reading.name] = reading
            if not reading.lost:
                self._first.setdefault(reading.name, reading)
            findings += judge(reading, self._first.get(reading.name))
        return findings

    def _fresh(self, findings: Iterable[Finding]) -> list[Finding]:
        fresh = [f for f in findings if f.check not in self._told]
        self._told |= {f.check for f in fresh}
        return fresh
