"""Samples of the workers' pace: from what the fork server sends to what the core takes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..core.protocol.model import Load, Sample
from ..core.stragglers import arrivals
from ..core.stragglers.arrivals import lower_median

STEPS = "steps"  # stands for a process group
LONGEST = 60  # characters of a group's name
MOST = 1 << 62  # a number, or a time in ns
USED = ("cpu", "queued", "throttled", "blocked", "clock")


def sample_of(ranks: Sequence[Mapping[str, Any]], ways: Mapping[str, float], agents: int) -> Sample:
    """Return the sample of an agent. `ranks` has what `Sampler` returns for each rank. The first
    sample has no pace and no use of CPUs.
    """
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


def _trace(times_by_group: Any) -> arrivals.Trace:
    """Return the arrivals by group, or {} if they are damaged: they are from a worker's memory."""
    try:
        trace = {
            str(group)[:LONGEST]: {int(number): int(time) for number, time in times.items()}
            for group, times in times_by_group.items()
        }
    except (AttributeError, OverflowError, TypeError, ValueError):
        return {}
    fits = (0 <= n < MOST and 0 <= t < MOST for times in trace.values() for n, t in times.items())
    return {group: times for group, times in trace.items() if times} if all(fits) else {}
