"""What the fork server tells of how the workers keep pace, as the core wants it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..core.protocol.model import Load, Sample
from ..core.stragglers import arrivals

SHARES = ("cpu", "queued", "throttled", "blocked")


def sample_of(
    number: int, ranks: Sequence[Mapping[str, Any]], ways: Mapping[str, float], agents: int
) -> Sample:
    """`ranks` is what `Sampler` tells of each: nothing of what they have used, the first time."""
    known = [rank for rank in ranks if "pace" in rank]
    traces = {rank["rank"]: _trace(rank["arrivals"]) for rank in ranks}
    return Sample(
        number=number,
        pace=round(max((rank["pace"] for rank in known), default=0.0), 6),
        arrivals=arrivals.together(traces, agents),
        loads=tuple(
            Load(rank["rank"], **{name: round(rank[name], 3) for name in SHARES}) for rank in known
        ),
        ways=tuple((address, round(delay, 6)) for address, delay in sorted(ways.items())),
    )


def _trace(told: Any) -> arrivals.Trace:
    """Of a worker's memory, in which anything may be found."""
    try:
        return {
            str(group): {int(number): int(time) for number, time in times.items()}
            for group, times in told.items()
        }
    except (AttributeError, TypeError, ValueError):
        return {}
