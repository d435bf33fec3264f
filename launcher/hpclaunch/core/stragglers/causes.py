"""The reason why a straggler is late, as far as it is visible on its node."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ..protocol.model import NO_RANK, Load, Sample
from ..protocol.values import value
from .arrivals import lower_median
from .lateness import Late

PART = 0.5  # least share of a lateness that what is visible explains
SLOW = 0.9  # share of the others' clock rate
FAR = 5.0  # multiples of the usual delay to other nodes
LEAST_FAR = 0.001  # seconds

OUTER = ("throttled", "queued", "blocked")  # reasons outside of the rank's program
SPINS = 0.9  # share of a CPU: a rank that waits for a GPU uses at least this
UNSEEN = "the cause is not visible on its node: it uses the CPU as the others do"
WORDS = {
    "throttled": "the CPU quota of its cgroup stops it for {:.0%} of the time",
    "queued": "it waits for a CPU for {:.0%} of the time: other processes use them",
    "blocked": "it waits for storage for {:.0%} of the time",
    "cpu": "it computes for {:.0%} of the time more: more work, or a slower processor",
}
SLOWED = "its CPU runs at {:.1f} GHz, the others' at {:.1f} GHz: it is throttled, or an older model"
UNKNOWN = (
    "it waits, mostly not for a CPU or a disk: perhaps for a data loader, a lock or another machine"
)


@value(frozen=True)
class Cause:
    words: str  # "" if nothing is known
    outer: bool = False  # other processes, a quota or storage prevent the rank from running


def cause(samples: Mapping[int, Sample], nodes: Mapping[int, int], late: Late) -> Cause:
    """Return what late ranks spend most of their additional time on, if what is visible of that
    explains their lateness. `nodes` has the node of each agent.
    """
    loads = {load.rank: load for sample in samples.values() for load in sample.loads}
    own = {
        load.rank
        for agent, sample in samples.items()
        if nodes[agent] == late.node
        for load in sample.loads
    }
    ranks = own if late.rank == NO_RANK else own & {late.rank}
    others = loads.keys() - ranks
    if not (ranks and others):
        return Cause("")
    more = _more(loads, ranks, others)
    shares = {
        "throttled": more.throttled,
        "queued": more.queued - more.throttled,  # a thread that a quota stops is queued as well
        "blocked": more.blocked,
        "cpu": more.cpu,
    }
    what = max(shares, key=lambda what: shares[what])
    if sum(max(0.0, share) for share in shares.values()) >= PART * late.seconds / late.pace:
        slowed = _slowed(loads, ranks, others) if what == "cpu" else ""
        return Cause(slowed or WORDS[what].format(getattr(more, what)), what in OUTER)
    spins = min(loads[rank].cpu for rank in ranks) >= SPINS
    return Cause(UNSEEN if spins else UNKNOWN)


def _more(loads: Mapping[int, Load], late: Collection[int], others: Collection[int]) -> Load:
    """Return the excess of the late ranks' shares over the others'."""

    def by(name: str) -> float:
        mine = lower_median(getattr(loads[rank], name) for rank in late)
        theirs = lower_median(getattr(loads[rank], name) for rank in others)
        return float(mine - theirs)

    return Load(NO_RANK, by("cpu"), by("queued"), by("throttled"), by("blocked"))


def _slowed(loads: Mapping[int, Load], late: Collection[int], others: Collection[int]) -> str:
    """Return the message that the late ranks' CPUs are slower; "" if they are not."""
    mine, theirs = (lower_median(loads[rank].clock for rank in ranks) for ranks in (late, others))
    return SLOWED.format(mine, theirs) if 0.0 < mine < SLOW * theirs else ""


@value(frozen=True)
class FarNode:
    """A node that is far from all others."""

    address: str
    delay: float  # seconds of a round trip
    usual: float  # the same between others

    @property
    def account(self) -> str:
        return (
            f"the network: its messages take {1000 * self.delay:.1f} ms to other nodes and back "
            f"(usual: {1000 * self.usual:.1f} ms)"
        )


def far_node(ways: Mapping[str, Mapping[str, float]]) -> FarNode | None:
    """Return the node that is far from all others. `ways` has the round trips, in seconds, from
    each address to others. With only two nodes, neither is known to be at fault.
    """
    pairs = [
        (one, other, delay) for one, way in ways.items() for other, delay in way.items() if delay
    ]
    if not all(other in ways for _, other, _ in pairs):
        return None
    nearest: dict[str, float] = {}
    for one, other, delay in pairs:
        for end in (one, other):
            nearest[end] = min(delay, nearest.get(end, delay))
    if not nearest:
        return None
    address = max(nearest, key=lambda address: nearest[address])
    others = [delay for one, other, delay in pairs if address not in (one, other)]
    if not others:
        return None
    found = FarNode(address, nearest[address], lower_median(others))
    return found if found.delay >= max(FAR * found.usual, LEAST_FAR) else None
