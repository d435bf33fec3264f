"""Jobs that nobody has run: their books and histories, as large as one likes."""

from __future__ import annotations

import random

from hpclaunch.core.history.moment import (
    AgentHistory,
    AgentMoment,
    GpusMoment,
    JobMoment,
    SavedMoment,
    WorkersMoment,
)
from hpclaunch.core.ledger.book import Book, Category, LedgerEntry
from hpclaunch.core.ledger.summing import Launch
from hpclaunch.core.protocol.facts import EndReason, RoundEnded
from hpclaunch.core.protocol.model import Culprit, Doing, Failure, Origin, Verdict

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
    """Of rounds that are equally long; each but the last one fails on some rank. The head notes
    `moments` in each, and the others ten times fewer. A spare is there besides the nodes.
    """
    chance = random.Random(7)
    seats = float(nodes * per_node)
    hosts = [host.format(i + 1) for i in range(nodes + 1)]
    entries, ends = [], []
    noted: list[list[AgentMoment]] = [[] for _ in hosts]
    states = f"{nodes}RS"
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
        entries.append(LedgerEntry(at, end, seats + per_node, spent, number, trained, saved))
        for i in range(moments):
            now = at + length * (i + 0.5) / moments
            for index in range(nodes if i % 10 == 0 or i + 1 == moments else 1):
                noted[index].append(_moment(index, number, now, at, length, per_node, gpus=gpus))
            job = JobMoment(states, "", SavedMoment(now - 3, number * 1000 + i, GIB))
            noted[0][-1] = AgentMoment(now, number, noted[0][-1].workers, job)
        if number + 1 < rounds:
            rank = chance.randrange(nodes * per_node)
            failure = a_failure(number, rank, hosts[rank // per_node], end - 1.0, tail)
            ends.append(RoundEnded(number, end - 1.0, end, (EndReason.FAILURE,), (failure,)))
            restart = {Category.RESTART: 2.0 * seats, Category.SPARE: 2.0 * per_node}
            entries.append(LedgerEntry(end, end + 2.0, seats + per_node, restart))
            end += 2.0
        at = end
    named = JobMoment(f"{nodes}PA", hosts=tuple(hosts))
    noted[0].insert(0, AgentMoment(begin, -1, None, named))
    histories = [
        AgentHistory(name, index, each, tuple(moments))
        for index, (each, moments) in enumerate(zip(hosts, noted, strict=True))
    ]
    verdict = Verdict(0, "all workers are done", Origin.DONE, restarts=rounds - 1) if over else None
    seat = "GPU" if gpus else "worker"
    book = Book(1, begin, at, tuple(entries), tuple(ends), verdict, tuple(hosts), seat)
    return Launch(name, (book,), begin - 5.0, over), histories


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
