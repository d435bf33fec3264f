"""Cordoned nodes: something is wrong there, so no workers are started on them."""

from __future__ import annotations

from collections.abc import Iterable

from ..protocol import ranges
from ..protocol.effects import Effect, Record
from ..protocol.facts import CordonKind, NodesCordoned
from ..protocol.model import Job
from .roster import Peer, Roster


class UnfitNodes:
    """The nodes that are cordoned for good. Each is recorded once."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._recorded: set[int] = set()

    def take_over(self, recorded: str) -> None:
        """Note which nodes the head before has `recorded`: they are not recorded again."""
        self._recorded = set(ranges.parsed(recorded))

    @property
    def recorded(self) -> str:
        """The numbers of the recorded nodes, for the next head."""
        return ranges.written(self._recorded)

    def note(self, peer: Peer, number: int) -> list[Effect]:
        """Record that the agent's node is cordoned, if it is unfit and that is new. `number`: the
        round that the fact names.
        """
        if not peer.unfit or peer.place.node in self._recorded:
            return []
        self._recorded.add(peer.place.node)
        job = self.job
        more = (peer.unfit, job.slurm_id, job.alone)
        return [Record(NodesCordoned(number, (peer.host,), CordonKind.UNFIT, *more))]


def cordon(roster: Roster, hosts: Iterable[str], kind: CordonKind, number: int) -> list[Effect]:
    """Cordon these hosts, for which there are spares, until `uncordon`. `number`: the round that
    the fact names.
    """
    hosts = tuple(hosts)
    if not hosts:
        return []
    for peer in roster:
        if peer.host in hosts:
            peer.cordoned = kind
    roster.changed()
    return [Record(NodesCordoned(number, hosts, kind))]


def uncordon(roster: Roster) -> None:
    """Let all nodes take part again that `cordon` excluded. Unfit nodes stay cordoned."""
    cordoned = [peer for peer in roster if peer.cordoned]
    for peer in cordoned:
        peer.cordoned = None
    if cordoned:
        roster.changed()
