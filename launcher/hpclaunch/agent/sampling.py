"""What the fork server tells of how the workers keep pace, as the core wants it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..core.protocol.model import Load, Sample
from ..core.stragglers import arrivals
from ..core.stragglers.medians import lower_median

STEPS = "steps"  # in the place of a process group
LONGEST = 60  # characters of a group's name
MOST = 1 << 62  # a number, or a time in ns
USED = ("cpu", "queued", "throttled", "blocked", "clock")


def sample_of(ranks: Sequence[Mapping[str, Any]], ways: Mapping[str, float], agents: int) -> Sample:
    """`ranks` is what `Sampler` tells of each: nothing of what they have used, the first time."""
    known = [rank for rank in ranks if "pace" in rank]
    paces = [rank["pace"] for rank in known if 0 < rank["pace"] < math.inf]
    traces = {rank["rank"]: _trace(rank["arrivals"]) for rank in ranks}
    steps = {rank["rank"]: _trace({STEPS: rank["steps"]}) for rank in ranks}
    return Sample(
        pace=round(lower_median(paces), 6) if paces else 0.0,
        blind=bool(ranks) and all(rank["blind"] for rank in ranks),
        arrivals=(
            *arrivals.together(traces, agents),
            *arrivals.together(steps, agents, on_gpus=True),
        ),
        loads=tuple(
            Load(rank["rank"], **{name: round(rank[name], 3) for name in USED}) for rank in known
        ),
        ways=tuple((address, round(delay, 6)) for address, delay in sorted(ways.items())),
    )


def _trace(told: Any) -> arrivals.Trace:
    """Of a worker's memory, in which anything may be found."""
    try:
        trace = {
            str(group)[:LONGEST]: {int(number): int(time) for number, time in times.items()}
            for group, times in told.items()
        }
    except (AttributeError, OverflowError, TypeError, ValueError):
        return {}
    fits = (0 <= n < MOST and 0 <= t < MOST for times in trace.values() for n, t in times.items())
    return {group: times for group, times in trace.items() if times} if all(fits) else {}
