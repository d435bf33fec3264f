"""Simulated nodes with staging directories, and the time, network and storage around them.

What a file really holds is its token: the number of the save that wrote it. Sizes are all the same,
so only the launcher's rules distinguish files. Activities are generators: they yield seconds, or
what they wait for.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from hpclaunch.core.staging.copies import Transfer
from hpclaunch.core.staging.files import Identity, StagedFile
from hpclaunch.core.staging.generations import (
    Holding,
    Kept,
    LastRestore,
    Manifest,
)

SIZE = 1000
TRACKER = "latest"  # the name of a file whose token is that of the save that it names
LATE = 4.0  # seconds; the longest delay of a message
LOSS = 4.0  # seconds of silence after which a node counts as lost
SILENCE = 6.0  # seconds until an order counts as lost

Activity = Generator[Any, Any, Any]


class LostError(Exception):
    """An order has failed: the node is lost or refuses it, or a message was lost."""


@dataclass(eq=False)
class Answer:
    """A result for which activities wait."""

    is_there: bool = False
    value: Any = None
    waiting: list[Callable[[], None]] = field(default_factory=list)

    def give(self, value: Any) -> None:
        if not self.is_there:
            self.is_there, self.value = True, value
            for resume in self.waiting:
                resume()


@dataclass(frozen=True)
class Data:
    """A file of a staging directory, of the kept copies or on storage."""

    size: int
    time: int
    token: int  # which save wrote it; 0: all saves have the same
    is_whole: bool = True  # as formats see from its structure
    world: int = 0  # of a decisive file: the number of shards

    @property
    def identity(self) -> Identity:
        return self.size, self.time


@dataclass
class Copies:
    """The files that a node keeps of one generation."""

    manifest: Manifest
    files: dict[str, Data] = field(default_factory=dict)


class World:
    """The time, and who runs."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(f"{seed} staging")
        self.now = 0.0
        self.transcript: list[str] = []
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self.loses = self.delays = 0.0  # shares of the messages

    def say(self, text: str) -> None:
        self.transcript.append(f"{self.now:8.3f}  {text}")

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._queue, (self.now + seconds, self._count, action))

    def run(self, until: float, check: Callable[[], None]) -> None:
        while self._queue and self._queue[0][0] < until:
            self.now, _, action = heapq.heappop(self._queue)
            action()
            check()

    def clock(self) -> int:
        """Return the time of a file that is written now; no two are the same."""
        self._count += 1
        return int(self.now * 1e6) * 1000 + self._count % 1000

    def spawn(self, activity: Activity, node: Node | None = None) -> Answer:
        """Run an activity until it returns, or its node dies. A paused node's waits."""
        answer, start = Answer(), None if node is None else node.start

        def step(value: Any = None) -> None:
            if node is not None and (node.start != start or not node.is_alive):
                return
            if node is not None and self.now < node.paused_until:
                self.after(node.paused_until - self.now, lambda: step(value))
                return
            try:
                wanted = activity.send(value)
            except StopIteration as end:
                answer.give(end.value)
                return
            if isinstance(wanted, Answer):
                if wanted.is_there:
                    self.after(0.0, lambda: step(wanted.value))
                else:
                    wanted.waiting.append(
                        lambda: self.after(0.0, lambda: step(wanted.value)),
                    )
            else:
                self.after(wanted, step)

        self.after(0.0, step)
        return answer

    def delay(self) -> float:
        if self.rng.random() < self.delays:
            return self.rng.uniform(0.0, LATE)
        return self.rng.uniform(0.001, 0.02)


class Node:
    """A node with its stager, which obeys the leader of the highest term that it knows."""

    def __init__(self, world: World, index: int, host: str) -> None:
        self.world, self.index, self.host = world, index, host
        self.start = 0  # how often it has started anew, with nothing
        self.is_alive = True
        self.paused_at = self.paused_until = 0.0
        self.group = 0  # nodes of other groups are out of reach
        self.round = 0  # of the workers that run; 0: none
        self.empty()

    def empty(self) -> None:
        self.order = (0, 0)  # the highest term, and the restore in it
        self.files: dict[str, Data] = {}
        self.had: dict[str, Identity] = {}  # at the last restore
        self.fetched: dict[str, Identity] = {}
        self.kept: dict[str, Copies] = {}
        self.restore = LastRestore()

    @property
    def runs(self) -> bool:
        return self.is_alive and self.world.now >= self.paused_until

    @property
    def is_heard(self) -> bool:
        """Whether the node does not count as lost."""
        is_silent = not self.runs and self.world.now >= self.paused_at + LOSS
        return self.is_alive and self.group == 0 and not is_silent

    def reaches(self, other: Node) -> bool:
        return self.group == other.group and self.is_alive and other.is_alive

    def _is_same(self, name: str, identity: Identity | None) -> bool:
        return name in self.files and self.files[name].identity == identity

    # Orders

    def obey(self, order: tuple[int, int]) -> None:
        if order < self.order:
            raise LostError(f"node {self.index} obeys {self.order}, not {order}")
        self.order = order

    def inventory(self) -> tuple[Holding, dict[str, Data]]:
        old = frozenset(n for n, identity in self.had.items() if self._is_same(n, identity))
        fetched = frozenset(n for n, i in self.fetched.items() if self._is_same(n, i))
        files = {name: data.identity for name, data in self.files.items()}
        kept = tuple(Kept(c.manifest, frozenset(c.files)) for c in self.kept.values())
        holding = Holding(self.index, self.host, files, old, fetched, kept, self.restore)
        return holding, dict(self.files)

    def find(self, file: StagedFile, generation: str) -> Data:
        """Return a file for another node, from the staging directory if `generation` is ""."""
        copies = self.kept.get(generation)
        found = (copies.files if copies else {}) if generation else self.files
        if file.name not in found or found[file.name].identity != file.identity:
            raise LostError(f"node {self.index} has no such {file.name}")
        return found[file.name]

    def record_restore(self, restore: LastRestore) -> None:
        self.restore = restore
        self.had = {name: data.identity for name, data in self.files.items()}

    def remove(self, files: Iterable[StagedFile]) -> None:
        for file in files:
            if self._is_same(file.name, file.identity):
                del self.files[file.name]

    def drop_fetched(self, names: Iterable[str]) -> None:
        for name in names:
            if self._is_same(name, self.fetched.get(name)):
                del self.files[name]


def read(world: World, nodes: Sequence[Node], transfer: Transfer) -> Generator[float, None, Data]:
    """Copy one file between nodes, as an activity of the node that fetches."""
    to, source = nodes[transfer.node], nodes[transfer.source]
    start = source.start
    before = source.find(transfer.file, transfer.kept)
    yield world.rng.uniform(0.01, 0.5) if to is not source else 0.01
    if not (to.reaches(source) and source.runs and source.start == start):
        raise LostError(f"node {source.index} is gone")
    if source.find(transfer.file, transfer.kept) != before:
        raise LostError(f"{transfer.file.name} has changed")
    return before


def call(
    world: World, caller: Node, node: Node, order: tuple[int, int], work: Callable[[], Activity]
) -> Answer:
    """Give a node an order. The answer is a pair: the result, and an error or None."""
    answer, start = Answer(), caller.start

    def serve() -> Activity:
        try:
            node.obey(order)
            value, error = (yield from work()), None
        except LostError as e:
            value, error = None, e
        world.after(world.delay(), lambda: reply(value, error))

    def reply(value: Any, error: LostError | None) -> None:
        if caller.reaches(node) and not is_lost():
            answer.give((value, error))

    def is_lost() -> bool:
        return caller is not node and world.rng.random() < world.loses

    def arrive() -> None:
        if caller.start == start and caller.reaches(node) and not is_lost():
            world.spawn(serve(), node)

    world.after(world.delay() if caller is not node else 0.0, arrive)
    world.after(SILENCE, lambda: answer.give((None, LostError(f"node {node.index} is silent"))))
    return answer
