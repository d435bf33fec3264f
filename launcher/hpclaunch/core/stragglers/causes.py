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
    shares = {
        f"the CPU quota of its cgroup stops it for {more.throttled:.0%} of the time": (
            more.throttled
        ),
        # A thread that is stopped by a quota waits for a CPU as well.
        f"it waits for a CPU for {more.queued:.0%} of the time: other processes use them": (
            more.queued - more.throttled
        ),
        f"it waits for storage for {more.blocked:.0%} of the time": more.blocked,
        f"it computes for {more.cpu:.0%} of the time more: more work, or a slower processor": (
            more.cpu
        ),
    }
    why = max(shares, key=lambda why: shares[why])
    return why if shares[why] >= MORE else UNKNOWN


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

    address: str
    delay: float  # seconds, there and back
    usual: float  # the same between others

    @property
    def account(self) -> str:
        return (
            f"the network: its messages take {1000 * self.delay:.1f} ms to other nodes and back "
            f"(usual: {1000 * self.usual:.1f} ms)"
        )


def far_node(ways: Mapping[str, Mapping[str, float]]) -> FarNode | None:
    """`ways` are the seconds from each address to others, and back. Of two nodes, nobody knows
    whose fault a long way is.
    """
    pairs = [
        ({one, other}, delay) for one, way in ways.items() for other, delay in way.items() if delay
    ]
    for address in ways:
        own = [delay for ends, delay in pairs if address in ends]
        others = [delay for ends, delay in pairs if address not in ends]
        if own and others:
            found = FarNode(address, min(own), lower_median(others))
            if found.delay >= max(FAR * found.usual, LEAST_FAR):
                return found
    return None
