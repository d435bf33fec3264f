"""Why a straggler is late, as far as its agent can see."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ..protocol.model import NO_RANK, Load, Sample
from .medians import lower_median

MORE = 0.05  # of the time
FAR = 5.0  # times the usual way to other nodes
LEAST_FAR = 0.001  # seconds

UNKNOWN = (
    "it waits, but not for a CPU or a disk: for a data loader, a lock, or another machine, perhaps"
)


def cause(samples: Mapping[int, Sample], agent: int, rank: int) -> str:
    """What the rank of this agent does more than others, in words; of the agent, for NO_RANK."""
    loads = {load.rank: load for sample in samples.values() for load in sample.loads}
    own = {load.rank for load in samples[agent].loads}
    late = own if rank == NO_RANK else own & {rank}
    others = loads.keys() - late
    if not (late and others):
        return ""
    more = _more(loads, late, others)
    if more.throttled >= MORE:
        return f"the CPU quota of its cgroup stops it for {more.throttled:.0%} of the time"
    if more.queued >= MORE:
        return f"it waits for a CPU for {more.queued:.0%} of the time: other processes use them"
    if more.blocked >= MORE:
        return f"it waits for storage for {more.blocked:.0%} of the time"
    if more.cpu >= MORE:
        return f"it computes for {more.cpu:.0%} of the time more: more work, or a slower processor"
    return UNKNOWN


def _more(loads: Mapping[int, Load], late: Collection[int], others: Collection[int]) -> Load:
    """By how much the shares of these ranks are above those of the others."""

    def by(name: str) -> float:
        mine = lower_median(getattr(loads[rank], name) for rank in late)
        theirs = lower_median(getattr(loads[rank], name) for rank in others)
        return float(mine - theirs)

    return Load(NO_RANK, by("cpu"), by("queued"), by("throttled"), by("blocked"))


@dataclass(frozen=True, slots=True)
class FarNode:
    """A node to which the way is long from all others."""

    agent: int
    delay: float  # seconds, there and back
    usual: float  # the same of others

    @property
    def account(self) -> str:
        return (
            f"the network: its messages take {1000 * self.delay:.1f} ms to other nodes and back "
            f"(usual: {1000 * self.usual:.1f} ms)"
        )


def far_node(samples: Mapping[int, Sample]) -> FarNode | None:
    """Each agent tells of the way to the node that is nearest to it. Of two nodes, nobody knows
    whose fault a long way is.
    """
    delays = {agent: sample.delay for agent, sample in samples.items() if sample.delay}
    if len(delays) < 3:
        return None
    agent = max(delays, key=lambda agent: delays[agent])
    found = FarNode(agent, delays[agent], lower_median(delays.values()))
    return found if found.delay >= max(FAR * found.usual, LEAST_FAR) else None
