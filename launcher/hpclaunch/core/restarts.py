"""After a failed round: which failure was the cause, and is there another round?"""

from __future__ import annotations

import signal
from collections.abc import Collection
from dataclasses import replace

from .model import Failure, Verdict, WorkerExit

MAX_CONSEQUENCES = 16  # a verdict goes to every agent: keep it small


def failed(e: WorkerExit) -> bool:
    """Whether this exit is a failure: not one by the signals with which its agent stopped it."""
    asked = e.stopped and e.signal in (signal.SIGTERM, signal.SIGKILL)
    return e.code != 0 and not asked


def in_order(failures: Collection[Failure]) -> tuple[Failure, ...]:
    """The failures of one round, the cause first.

    The earliest exit is the cause: a peer notices a lost connection only once the first process
    is gone, and still has to unwind. Within one instant a death by signal comes before an exit,
    since nobody dies by SIGKILL or SIGSEGV because a peer went away. A fork server that was killed
    is told only once another is there, and by then a peer may have failed of it.
    """

    def key(f: Failure) -> tuple[float, ...]:
        return (f.stopped, not f.with_server, f.at, f.signal == 0, f.rank)

    return tuple(sorted(failures, key=key))


def signal_name(signum: int) -> str:
    try:
        return signal.Signals(signum).name
    except ValueError:  # a real-time signal
        return f"signal {signum}"


def how(failure: Failure) -> str:
    """One failure in words, for a line of text."""
    if failure.with_server:
        return f"the fork server on {failure.host} was killed with its workers"
    if failure.signal:
        ending = f"was killed by {signal_name(failure.signal)}"
    else:
        ending = f"exited with code {failure.code}"
    return f"rank {failure.rank} on {failure.host} {ending}"


def verdict_for(failures: Collection[Failure], used: int, budget: int) -> Verdict | None:
    """None when the job may try again, else how it ends. `used` restarts of `budget` are spent."""
    if used < budget:
        return None
    first, *later = in_order(failures)
    if not budget:
        spent = "no restarts were allowed (--max-restarts 0)"
    else:
        spent = "the only restart is" if budget == 1 else f"all {budget} restarts are"
        spent += " used up"
    return Verdict(
        code=first.code,
        reason=f"{how(first)} in round {first.round}, and {spent}",
        cause=first,
        consequences=tuple(replace(f, tail="") for f in later[:MAX_CONSEQUENCES]),
        restarts=used,
    )
