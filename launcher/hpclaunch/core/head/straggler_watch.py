"""Stragglers: samples of all agents are compared to find the rank that the others wait for."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping

from ..protocol.effects import Effect, Record
from ..protocol.facts import StragglerNamed, StragglerRecovered
from ..protocol.messages import Report
from ..protocol.model import NO_RANK, Phase, Query, QueryKind, Sample
from ..protocol.timing import Timing
from ..protocol.values import value
from ..stragglers import causes, lateness
from ..stragglers.lateness import Late, Lateness
from .round import Round, ranks_of

LEAST_SAMPLES, LEAST_STEPS = 2, 5  # in a row, with the same rank or node late in all samples
FORGIVEN_AFTER = 3  # samples in which the straggler is not late
SOON = 1.0  # seconds until the first sample


@value(frozen=True)
class Straggler:
    node: int
    host: str
    rank: int  # NO_RANK: several ranks of this node


class StragglerWatch:
    """The search for stragglers in one round. An agent that does not answer in time is left out."""

    def __init__(self, timing: Timing, numbers: Iterator[int]) -> None:
        self.timing, self._numbers = timing, numbers
        self.query: Query | None = None  # for samples, while answers are awaited
        self.named: Straggler | None = None
        self._next_at = math.inf  # the next sample; while `query` is set, the end of the wait
        self._found: deque[Lateness] = deque(maxlen=LEAST_STEPS)
        self._without = 0  # samples in a row in which the node of `named` was not late
        self._agents = 0  # the number of agents in the round
        self._made: dict[int, int] = {}  # the steps of each agent that has made any
        self._total = 0  # the sum of these
        self._asked_total = 0  # `_total` when samples were last asked for

    def begin(self, current: Round, now: float) -> None:
        """Begin to watch a round, unless it has a single worker."""
        self._agents = len(current.participants)
        alone = sum(len(ranks_of(peer)) for peer in current.participants) == 1
        self._next_at = math.inf if alone else now + SOON

    def hear(self, agent: int, report: Report) -> None:
        """Note how many steps the workers of an agent that takes part have made."""
        progress = report.progress if report.phase is Phase.RUNNING else None
        steps = 0 if progress is None else max(progress.steps, default=0)
        self._total += steps - self._made.pop(agent, 0)
        if steps:
            self._made[agent] = steps

    @property
    def _awaits_steps(self) -> bool:
        """Whether there is nothing to compare: an agent makes no steps, or none are new."""
        return len(self._made) < self._agents or self._total <= self._asked_total

    def next_deadline(self) -> float:
        return math.inf if self._awaits_steps and not self.query else self._next_at

    def check(self, current: Round, now: float) -> list[Effect] | None:
        """Return None unless all agents need new orders; then return what to record."""
        if self.query is not None:
            query = self.query
            answers = (peer.last_report.answer(Sample, query) for peer in current.participants)
            if now < self._next_at and None in answers:
                return None
            samples, self.query = _samples(current, query), None
            self._next_at = now + self.timing.sampling
            return self._judge(current, samples)
        if now < self._next_at or self._awaits_steps:
            return None
        self._asked_total = self._total
        self.query = Query(QueryKind.SAMPLE, next(self._numbers))
        self._next_at = now + self.timing.gathering
        return []

    def _judge(self, current: Round, samples: Mapping[int, Sample]) -> list[Effect]:
        finding, why = _find(current, samples)
        if not finding.steps:
            return []
        self._found.append(finding)
        late, named = finding.late, self.named
        effects: list[Effect] = []
        if named is not None:
            self._without = 0 if late and late.node == named.node else self._without + 1
            if self._without >= FORGIVEN_AFTER:
                effects.append(Record(StragglerRecovered(named.host, named.rank)))
                self.named = None
        straggler = self._same(current)
        if self.named is not None or straggler is None or late is None:
            return effects
        self.named, self._without = straggler, 0
        fact = StragglerNamed(straggler.host, straggler.rank, late.seconds, late.pace, why)
        return [*effects, Record(fact)]

    def _same(self, current: Round) -> Straggler | None:
        """Return who was late in each of the last samples, if these are enough; else None."""
        nodes: set[int] = set()
        ranks: set[int] = set()
        steps = samples = 0
        for found in reversed(self._found):
            if found.late is None:
                return None
            nodes.add(found.late.node)
            ranks.add(found.late.rank)
            steps, samples = steps + found.steps, samples + 1
            if samples >= LEAST_SAMPLES and steps >= LEAST_STEPS:
                break
        one_by_one = len(ranks - {NO_RANK}) > 1
        if len(nodes) > 1 or one_by_one or samples < LEAST_SAMPLES or steps < LEAST_STEPS:
            return None
        node = nodes.pop()
        host = next(p.host for p in current.participants if p.place.node == node)
        return Straggler(node, host, ranks.pop() if len(ranks) == 1 else NO_RANK)


def _samples(current: Round, query: Query) -> dict[int, Sample]:
    peers = current.participants
    found = ((peer.place.index, peer.last_report.answer(Sample, query)) for peer in peers)
    return {agent: sample for agent, sample in found if sample is not None}


def _find(current: Round, samples: Mapping[int, Sample]) -> tuple[Lateness, str]:
    """Return who is late, and why."""
    nodes = {p.place.index: p.place.node for p in current.participants}
    found = lateness.find(samples, nodes)
    if (far := _far(current, samples, nodes)) is not None:
        return Lateness(max(1, found.steps), far[0]), far[1]
    late = found.late
    if late is None:
        return found, ""
    cause = causes.cause(samples, nodes, late)
    # Hosts hand collectives over long before GPUs begin them. A host that waits for its GPU in each
    # step, such as to print the loss, is behind the others without delaying them.
    doubtful = late.on_gpus and not cause.outer
    return (Lateness(found.steps, None), "") if doubtful else (found, cause.words)


def _far(
    current: Round, samples: Mapping[int, Sample], nodes: Mapping[int, int]
) -> tuple[Late, str] | None:
    """Return a node that the network delays, and why; None if there is none. If there is one, no
    late rank counts as slow itself.
    """
    parts = {p.place.index: p.assignment for p in current.participants}
    addresses = {agent: part.address for agent, part in parts.items() if part is not None}
    ways: dict[str, dict[str, float]] = {}
    for agent, sample in samples.items():
        own = ways.setdefault(addresses[agent], {})
        for address, delay in sample.ways:
            own[address] = min(delay, own.get(address, delay))
    far, pace = causes.far_node(ways), lateness.pace_of(samples)
    if far is None or not pace:
        return None
    cost = far.delay * lateness.collectives_a_step(samples)
    if cost < lateness.LEAST * pace:
        return None
    node = next(nodes[agent] for agent in samples if addresses[agent] == far.address)
    return Late(node, NO_RANK, min(cost, pace), pace), far.account
