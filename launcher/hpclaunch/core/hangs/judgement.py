"""The judgement of which rank is at fault for a hang.

Ranks in a collective wait for ranks that have not begun it. If all ranks are in collectives, one
that is in another collective than the others is at fault. If all are in the same one, the network
or the backend is. A rank that waits for a message waits for the rank at the other end.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping

from ..protocol import ranges
from ..protocol.model import RankState
from ..protocol.values import value
from ..protocol.wording import count, plain

MOST_LINES = 4  # of ranks that wait, and as many of ranks at fault
IN_THE_KERNEL, STOPPED = "D", "T"  # states of processes, as in proc(5)
WORLD = "0"  # torch's name for the group of all ranks, in which ranks have their job-wide numbers
_MESSAGE = re.compile(r"(?:send|recv) \d+(?:->|<-)(\d+)")


@value(frozen=True)
class Judgement:
    culprits: tuple[int, ...]  # () if no rank is known to be at fault
    lines: tuple[str, ...]  # messages about what the ranks do
    may_take_long: bool  # a culprit, or a rank without data, uses the CPU
    is_debugged: bool  # a debugger stops a rank, and the others wait for it


def judge(
    states: Mapping[int, RankState], ended: Collection[int], hosts: Mapping[int, str]
) -> Judgement:
    """Judge the ranks by their states. A rank with `state` "" did not report. `ended` are the ranks
    that are done, and `hosts` has the host of each rank.
    """
    culprits = set(_culprits(states, ended))
    at_fault = [states[rank] for rank in culprits]
    waiters = [s for s in states.values() if s.waits is not None and s.rank not in culprits]
    # The ranks that the others may wait for: all, if no rank is in a collective.
    doubtful = [s for s in states.values() if not waiters or not s.state or s.rank in culprits]
    lines = [
        f"{_ranks(those)} {_wait(those)}" for those in _alike(waiters, lambda state: state.waits)
    ]
    shown = at_fault if at_fault or waiters else states.values()  # all of them if none is at fault
    for those in _alike(shown, lambda state: (state.waits, state.place, state.state)):
        does = _does(those, awaited=bool(waiters))
        lines.append(f"{_ranks(those)} on {_hosts(those, hosts)} {does}")
    if waiters and not at_fault:
        if ended:
            gone = [RankState(rank) for rank in sorted(ended)]
            has = "have" if len(gone) > 1 else "has"
            lines.append(f"{_ranks(gone)} on {_hosts(gone, hosts)} {has} ended")
            culprits = set(ended)
        elif len({state.waits for state in waiters}) > 1:
            lines.append("they wait for one another, in different collectives")
        else:
            lines.append("all have begun it: a network that loses data, or a fault of the backend")
    return Judgement(
        culprits=tuple(sorted(culprits)),
        lines=tuple(lines),
        may_take_long=any(state.busy for state in doubtful),
        is_debugged=any(state.debugged for state in states.values()),
    )


def _culprits(states: Mapping[int, RankState], ended: Collection[int]) -> list[int]:
    waits = {rank: s.waits for rank, s in states.items() if s.waits is not None}
    if len(states) == 1 and not (waits and ended):  # no other rank can be at fault
        return list(states)
    if not waits:
        return _apart(states)
    if len(waits) < len(states):
        others = [rank for rank in states if rank not in waits]
        return [rank for rank in others if states[rank].state] or others
    ends = {rank: end for rank in waits if (end := _other_end(*waits[rank])) is not None}
    if ends:
        return list((set(ends.values()) & states.keys()) - ends.keys())
    # All wait: in different groups, in different collectives of one group, or in the same one.
    groups = {rank: group for rank, (group, _, _) in waits.items()}
    numbers = {rank: number for rank, (_, number, _) in waits.items()}
    if len(set(groups.values())) > 1:
        return _minority(groups)
    if len(set(numbers.values())) > 1:
        earliest = min(numbers.values())
        return [rank for rank, number in numbers.items() if number == earliest]
    return _minority(waits)


def _other_end(group: str, _number: int, name: str) -> int | None:
    """Return the rank at the other end of a message; None for a collective or another group."""
    found = _MESSAGE.fullmatch(name) if group == WORLD else None
    return int(found[1]) if found else None


def _apart(states: Mapping[int, RankState]) -> list[int]:
    """Return the culprits if no rank is in a collective: ranks that cannot run, or else those whose
    place in the program differs from that of most.
    """
    stuck = [rank for rank, s in states.items() if s.state in (IN_THE_KERNEL, STOPPED)]
    if stuck and len(stuck) < len(states):
        return stuck
    return _minority({rank: state.place for rank, state in states.items()})


def _minority(values: Mapping[int, object]) -> list[int]:
    """Return the keys whose value is not that of the majority; [] without a majority."""
    if not values:
        return []
    ((most, times),) = Counter(values.values()).most_common(1)
    return [] if 2 * times <= len(values) else [k for k, value in values.items() if value != most]


# In words


def _alike(
    states: Iterable[RankState], key: Callable[[RankState], object]
) -> list[list[RankState]]:
    """Return the largest groups of ranks with the same key, the largest first."""
    found: dict[object, list[RankState]] = {}
    for state in sorted(states, key=lambda state: state.rank):
        found.setdefault(key(state), []).append(state)
    return sorted(found.values(), key=len, reverse=True)[:MOST_LINES]


def _wait(states: list[RankState]) -> str:
    waits = states[0].waits
    assert waits is not None, "the caller passes only ranks that wait"
    _, number, name = waits
    numbered = f" number {number:,}" if number else ""
    return f"{'wait' if len(states) > 1 else 'waits'} in {name}{numbered}"


def _does(states: list[RankState], *, awaited: bool) -> str:
    first = states[0]
    if first.waits is not None:
        return _wait(states) + (f", in {plain(first.place)}" if first.place else "")
    if not first.state:
        return f"did not report where {'they are' if len(states) > 1 else 'it is'}"
    how = {IN_THE_KERNEL: ", in the kernel", STOPPED: ", stopped by a signal"}.get(first.state, "")
    where = f"in {plain(first.place) or 'an unknown place'}{how}"
    if len(states) > 1:
        return f"have not reached it: they are {where}" if awaited else f"are {where}"
    return f"has not reached it: it is {where}" if awaited else f"is {where}"


def _ranks(states: list[RankState]) -> str:
    return f"rank{'s' if len(states) > 1 else ''} {ranges.written(s.rank for s in states)}"


def _hosts(states: list[RankState], hosts: Mapping[int, str]) -> str:
    some = sorted({hosts.get(state.rank, "") for state in states})
    return some[0] if len(some) == 1 else count(len(some), "node")
