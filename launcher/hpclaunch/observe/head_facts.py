"""The facts of all heads of a launch in the order of time."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence

from ..core.member.moments import LATEST
from ..core.protocol.facts import Fact, HeadChanged, HeadDeposed, RoundBegan, RoundShares, SeatUse
from ..core.protocol.values import is_value, names

DatedFact = tuple[float, Fact]  # with the time when it was recorded


def facts_of_heads(runs: Iterable[Sequence[DatedFact]]) -> list[DatedFact]:
    """Return the facts that agents of a launch recorded while they led. Each of `runs` has the
    facts of one start of an agent. A head's facts count until a head of a later term leads.
    """
    tenures = defaultdict[int, list[DatedFact]](list)
    for run in runs:
        term: int | None = None
        for at, fact in run:
            match fact:
                case HeadChanged(term=number) | SeatUse(tenure=number):
                    term = number
                case HeadDeposed():
                    term = None
            if term is not None and is_sound(at, fact):
                tenures[term].append((at, fact))
    heads = _on_one_clock(tenures[term] for term in sorted(tenures))
    found = []
    for i, head in enumerate(heads):
        until = min((later[0][0] for later in heads[i + 1 :]), default=LATEST)
        found += [(at, fact) for at, fact in head if at < until]
    return found


def _on_one_clock(heads: Iterable[Sequence[DatedFact]]) -> list[list[DatedFact]]:
    """Return the facts of each head in the order in which it recorded them, with times that never
    decrease.

    A head begins to lead only when no round of an earlier head runs. If its times contradict this,
    its clock is behind: the times are moved forward.
    """
    found = []
    ran = 0.0  # when a round is last known to have run
    for head in heads:
        # A fact is no later than those after it, even if the clock was ahead for a while.
        times = [*itertools.accumulate((at for at, _ in reversed(head)), min)][::-1]
        behind = max(0.0, ran - times[0])
        dated = [(at + behind, fact) for at, (_, fact) in zip(times, head, strict=True)]
        ran = max((at for at, fact in dated if _is_running(fact)), default=ran)
        found.append(dated)
    return found


def _is_running(fact: Fact) -> bool:
    return isinstance(fact, RoundBegan) or (isinstance(fact, SeatUse) and fact.round is not None)


def is_sound(at: float, fact: Fact) -> bool:
    """Return whether the values are possible. They are not if the line of the file is damaged."""
    return 0 <= at < LATEST and _is_possible(fact)


def _is_possible(value: object) -> bool:
    if isinstance(value, float):
        return -LATEST < value < LATEST
    if isinstance(value, dict):  # of seats, seat seconds or nodes
        return all(isinstance(v, str) or 0 <= v < LATEST for v in value.values())
    if isinstance(value, tuple):
        return all(map(_is_possible, value))
    if isinstance(value, RoundShares) and value.elapsed < 0:
        return False
    return not is_value(value) or all(_is_possible(getattr(value, n)) for n in names(value))
