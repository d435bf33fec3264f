"""Synthetic ledgers, facts and histories of jobs of any size."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from pathlib import Path

from hpclaunch.core.member.moments import (
    AgentHistory,
    AgentMoment,
    GpusMoment,
    WorkersMoment,
)
from hpclaunch.core.protocol import host_lists
from hpclaunch.core.protocol.facts import (
    Category,
    CheckpointSaved,
    EndReason,
    Fact,
    JobEnded,
    RoundBegan,
    RoundEnded,
    RoundShares,
    SeatUse,
)
from hpclaunch.core.protocol.model import Culprit, Doing, Failure, Origin, Verdict
from hpclaunch.core.protocol.values import replace
from hpclaunch.observe.launch_past import LaunchPast, past_of
from hpclaunch.observe.launches import Launch
from hpclaunch.observe.ledger_entries import LedgerEntry, rewind
from hpclaunch.system.logs.fact_files import FactFile

BEGIN = 1_790_000_000.0
GIB = 1 << 30
TAIL = """Traceback (most recent call last):
  File "/home/u/train.py", line 212, in main
    loss.backward()
RuntimeError: CUDA error: unspecified launch failure
"""


def a_failure(number: int, rank: int, host: str, at: float, tail: str = TAIL) -> Failure:
    return Failure(number, rank, host, 1, 0, at, tail, culprit=Culprit.WORKER)


def a_launch(
    name: str = "71.0",
    *,
    nodes: int = 2,
    per_node: int = 2,
    rounds: int = 2,
    length: float = 600.0,
    begin: float = BEGIN,
    tail: str = TAIL,
    host: str = "n{}",
    gpus: bool = False,
    moments: int = 40,
    over: bool = True,
) -> tuple[Launch, list[AgentHistory]]:
    """Return a launch with rounds of equal length, and the histories of its agents.

    Each round but the last one fails on some rank. The head records so many `moments` in each
    round, the other agents a tenth of that. There is a spare in addition to the nodes.
    """
    chance = random.Random(7)
    seats = float(nodes * per_node)
    hosts = [host.format(i + 1) for i in range(nodes + 1)]
    entries, ends = [], []
    noted: list[list[AgentMoment]] = [[] for _ in hosts]
    at = begin
    for number in range(rounds):
        end = at + length
        spent = {
            Category.IMPORTS: 0.05 * length * seats,
            Category.LOADING: 0.05 * length * seats,
            Category.TRAINING: 0.85 * length * seats,
            Category.SAVING: 0.05 * length * seats,
            Category.SPARE: length * per_node,
        }
        saved = at - 0.1 * length if number else None
        trained = (at + 0.1 * length, end)
        entries = rewind(entries, math.inf if saved is None else saved)
        entries.append(LedgerEntry(at, end, seats + per_node, spent, number, trained, saved))
        for i in range(moments):
            now = at + length * (i + 0.5) / moments
            for index in range(nodes if i % 10 == 0 or i + 1 == moments else 1):
                noted[index].append(_moment(index, number, now, at, length, per_node, gpus=gpus))
        if number + 1 < rounds:
            rank = chance.randrange(nodes * per_node)
            failure = a_failure(number, rank, hosts[rank // per_node], end - 1.0, tail)
            ends.append(RoundEnded(number, end - 1.0, end, (EndReason.FAILURE,), (failure,)))
            restart = {Category.RESTART: 2.0 * seats, Category.SPARE: 2.0 * per_node}
            entries.append(LedgerEntry(end, end + 2.0, seats + per_node, restart))
            end += 2.0
        at = end
    histories = [
        AgentHistory(name, index, each, tuple(moments))
        for index, (each, moments) in enumerate(zip(hosts, noted, strict=True))
    ]
    verdict = Verdict(0, "all workers are done", Origin.DONE, restarts=rounds - 1) if over else None
    seat = "GPU" if gpus else "worker"
    names = tuple(hosts)
    launch = Launch(name, tuple(entries), tuple(ends), begin - 5.0, verdict, names, seat)
    return launch, histories


def facts_of(launch: Launch, saves: int = 10) -> Iterator[tuple[float, Fact]]:
    """Yield the facts that a head would have recorded, with times. The last node is a spare."""
    workers, spare = host_lists.written(launch.hosts[:-1]), host_lists.written(launch.hosts[-1:])
    ends = {end.round: end for end in launch.ends}
    for entry in launch.entries:
        lasted, number = entry.end - entry.begin, entry.round
        if number is None:
            seats = {category: spent / lasted for category, spent in entry.spent.items()}
            nodes = {Category.RESTART: workers, Category.SPARE: spare}
            yield entry.begin, SeatUse(0, seats, nodes=nodes)
            continue
        began = (number, "", 1, 1, (), (), False, (), "", "", (), "", 1)
        yield entry.begin, RoundBegan(*began, saves=False)
        seats = {Category.UNKNOWN: entry.seats}
        nodes = {Category.UNKNOWN: workers, Category.SPARE: spare}
        yield entry.begin, SeatUse(0, seats, number, nodes=nodes)
        for part in range(1, saves + 1):
            step, at = number * 1000 + part, entry.begin + lasted * part / (saves + 1)
            yield at, CheckpointSaved(f"step-{step}.pt", step, GIB, 3.0)
        trained = entry.trained
        if trained is not None:
            trained = (trained[0] - entry.begin, trained[1] - entry.begin)
        shares = RoundShares(lasted, entry.spent, trained)
        end = ends.get(number, RoundEnded(number, entry.end, entry.end, ())).moved(-entry.end)
        yield entry.end, replace(end, shares=shares)
    if launch.verdict is not None:
        yield launch.until, JobEnded(0, launch.verdict)
    seats = {Category.END: launch.entries[-1].seats}
    nodes = {Category.END: host_lists.written(launch.hosts)}
    yield launch.until, SeatUse(0, seats, nodes=nodes, are_gpus=launch.seat == "GPU")


def pasts_of(*launches: Launch) -> dict[str, LaunchPast]:
    """Return the pasts of launches, from the facts that their heads would have recorded."""
    return {launch.name: past_of(facts_of(launch)) for launch in launches}


def write_facts(directory: Path, launch: Launch) -> Path:
    """Write the file of a head to a log directory."""
    file = FactFile(directory, "0", launch.name, "n1", "a")
    lines = []
    file.lines.add = lines.append
    for at, fact in facts_of(launch):
        file.record(fact, at)
    path = directory / "facts.jsonl"
    path.touch(0o600)
    path.write_bytes(b"".join(lines))
    return path


def _moment(
    index: int, number: int, now: float, begin: float, length: float, per_node: int, *, gpus: bool
) -> AgentMoment:
    elapsed = now - begin
    left, spent = elapsed, [0] * Doing.NOTHING
    for doing, share in ((Doing.IMPORTS, 0.05), (Doing.LOADING, 0.05), (Doing.TRAINING, 1.0)):
        taken = min(left, share * length)
        spent[doing], left, now_doing = round(1000 * taken), left - taken, doing
        if left <= 0:
            break
    spent[Doing.SAVING] = round(spent[Doing.TRAINING] * 0.05)
    use = GpusMoment(per_node, 0.9, 0.7, 60 * GIB * per_node, 80 * GIB * per_node, 61 + index % 9)
    workers = WorkersMoment(
        index * per_node,
        per_node,
        elapsed,
        (*spent, now_doing.value),
        steps=max(0, round(8 * (elapsed - 0.1 * length))),
        seen=elapsed,
        memory=per_node * (3 * GIB + round(elapsed) * 1000),
        largest=4 * GIB,
        gpus=use if gpus else None,
    )
    return AgentMoment(now, number, workers)
