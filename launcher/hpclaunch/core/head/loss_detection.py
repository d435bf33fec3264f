"""Loss detection: decides when an agent counts as lost, and its node with it, and when it is back.

The rules for a single agent are in consensus/presence.py.
"""

from __future__ import annotations

import math

from ..protocol.messages import Report
from ..protocol.model import Phase
from .roster import Peer, Roster


class LossDetector:
    def __init__(self, roster: Roster) -> None:
        self.roster = roster
        self.check_at = math.inf  # no agent can become lost by silence before this time

    def expect(self, peer: Peer) -> None:
        """From now on, the agent counts as lost if it is silent for too long."""
        if peer.place.index != self.roster.me:
            self.check_at = min(self.check_at, peer.presence.deadline())

    def note(self, peer: Peer, report: Report, *, ending: bool) -> str:
        """Take in a new report. Returns a line for the user, or ""."""
        said = ""
        self.roster.absent.discard(peer.place.index)
        if report.unfit:
            self.roster.changed()
        if report.phase is Phase.ENDED and not ending and not peer.lost:
            said = f"the agent on {peer.host} has left: it did not hear the head"
            peer.presence.leave(said)
            self._give_up(peer)
        if peer.can_come_back:
            peer.presence.come_back()
            self.roster.changed()
            said = f"{peer.host} is back"
        self.expect(peer)
        return said

    def check(self, now: float) -> list[Peer]:
        """Return the agents that have become lost by their silence."""
        lost = []
        for peer in self.roster.others:
            if why := peer.presence.check(now):
                peer.presence.give_up(f"the agent on {peer.host} was lost: {why}")
                self._give_up(peer)
                lost.append(peer)
        self.check_at = min((p.presence.deadline() for p in self.roster.others), default=math.inf)
        return lost

    def died(self, peer: Peer, now: float) -> list[Peer]:
        """A probe has found the agent dead. Returns [peer] if it was not lost before, else []."""
        was_lost, evidence = peer.lost, peer.presence.contact.evidence(now, dead=True)
        peer.presence.die(now, f"the agent on {peer.host} was lost: {evidence}")
        self._give_up(peer)
        return [] if was_lost else [peer]

    def _give_up(self, peer: Peer) -> None:
        self.roster.absent.discard(peer.place.index)
        self.roster.changed()
