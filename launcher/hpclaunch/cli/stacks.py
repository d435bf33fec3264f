"""Show where the workers of a running job are, without disturbing them.

    hpclaunch stacks               your workers on this machine
    hpclaunch stacks 71            those of a Slurm job, on all of its nodes
    hpclaunch stacks 71 --rank 3   all stacks of one of them

A line has the last step, the innermost line of the script, the state of the
process, and what it waits for in the kernel. Workers that have all of this in
common share a line.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from hpclaunch.core.hangs import tracebacks
from hpclaunch.core.protocol import ranges
from hpclaunch.core.protocol.errors import UsageError
from hpclaunch.core.protocol.model import EXIT_FAILED
from hpclaunch.core.protocol.wording import count, plain

from . import say, values, write
from .parser import Parser

USUAL = ("start", "step")  # phases that are not shown
YOUNG = "those that are just being started have no stacks yet"
STOPPED = {"T": "stopped", "t": "stopped by a debugger"}


def prepare_parser(parser: Parser) -> None:
    parser.add_argument(
        "job", nargs="?", metavar="JOB", help="Slurm's id of a job (default: this machine)"
    )
    parser.add_argument(
        "--full", action="store_true", help="show the stacks of all threads of all processes"
    )
    parser.add_argument(
        "--rank", type=values.integer(0), metavar="R", help="the same, but only of this rank"
    )


def run(options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from hpclaunch.system.processes import worker_stacks

    job, rank = options.job, options.rank
    if job == "":  # from an unset variable of the shell; squeue would list all jobs
        raise UsageError("the name of the job is empty")
    if job is not None and not job[0].isdecimal():  # the name of a launch
        raise UsageError(f"{job} is no id of a Slurm job: leave it out to look at this machine")
    where = "this machine" if job is None else f"job {job}"
    whole = "all" if options.full and rank is None else "" if rank is None else str(rank)
    try:
        if job is None:
            workers, complaint = worker_stacks.here(whole)
        else:
            workers, complaint = worker_stacks.of_job(job, whole, environ)
    except OSError as e:
        why = ": ".join(filter(None, (e.strerror, e.filename)))
        raise UsageError(f"cannot look at {where}: {why}") from e
    if not workers:
        raise UsageError(_nothing(job, complaint))
    unseen = f"not all of {where} was seen: {complaint}" if complaint else ""
    if rank is not None:
        workers, there = [w for w in workers if w["rank"] == rank], workers
        if not workers:
            ranks = ranges.written(worker["rank"] for worker in there)
            why = "; ".join(filter(None, [f"there {_are(ranks)}", unseen]))
            raise UsageError(f"no rank {rank}: {why}")
    write("".join(f"{line}\n" for line in _shown(workers, in_full=bool(whole))))
    if unseen:
        say(unseen)
    return EXIT_FAILED if unseen else 0


def _are(ranks: str) -> str:
    return f"is rank {ranks}" if ranks.isdecimal() else f"are ranks {ranks}"


def _nothing(job: str | None, complaint: str) -> str:
    if job is None:
        how = "to look at a Slurm job on all of its nodes: hpclaunch stacks JOB"
        return complaint or f"no workers run here; {YOUNG}; {how}"
    if complaint:
        return f"cannot look at job {job}: {complaint}"
    return f"job {job} has no workers; {YOUNG}"


def _shown(workers: Sequence[Mapping[str, Any]], *, in_full: bool) -> Iterator[str]:
    launches = sorted({worker["launch"] for worker in workers})
    for launch in launches:
        own = sorted((w for w in workers if w["launch"] == launch), key=lambda w: int(w["rank"]))
        if len(launches) > 1:
            yield plain(f"{launch}:")
        for line in _each(own) if in_full else _grouped(own):
            yield plain(f"  {line}" if len(launches) > 1 else line)


def _grouped(workers: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for worker in workers:
        groups.setdefault(_state(worker), []).append(worker)
    for state, alike in groups.items():
        ranks = ranges.written(worker["rank"] for worker in alike)
        yield f"{_name(alike[0])}: {state}" if len(alike) == 1 else f"ranks {ranks}: {state}"


def _each(workers: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for worker in workers:
        yield f"{_name(worker)}: {_state(worker)}"
        for process in worker["processes"]:
            threads = count(process["threads"], "thread")
            yield f"  process {process['pid']} ({process['name']}): {_kernel(process)}, {threads}"
            for line in (process["stacks"] or "").splitlines():
                yield f"    {line}" if line else ""


def _name(worker: Mapping[str, Any]) -> str:
    return f"rank {worker['rank']} on {worker['host']} (pid {worker['pid']})"


def _state(worker: Mapping[str, Any]) -> str:
    """Describe a worker by its first process that can show its stacks, or else by its own."""
    processes = worker["processes"]
    process = next((p for p in processes if p["can_answer"]), processes[0])
    words = [f"step {worker['step']}"] if worker["step"] else []
    words += [f"phase {worker['phase']}"] if worker["phase"] not in USUAL else []
    return f"{', '.join([*words, _place(process)])}; {_kernel(process)}"


def _place(process: Mapping[str, Any]) -> str:
    if not process["can_answer"]:
        return f"in {process['name']}, whose stacks are not known"
    if process["state"] in STOPPED:
        return f"{STOPPED[process['state']]}, so its stacks are not known"
    if not process["stacks"]:
        return "it does not answer"
    stack = tracebacks.main_thread(process["stacks"])
    place = tracebacks.place(stack)
    if not place:
        return "in no Python code"
    collective = tracebacks.collective(stack)
    return f"in {collective}, from {place}" if collective else f"in {place}"


def _kernel(process: Mapping[str, Any]) -> str:
    """Return a state such as "S, futex_do_wait". A running process waits in no kernel function."""
    waits = process["wchan"]
    return f"{process['state']}, {waits}" if waits not in ("", "0") else str(process["state"])
