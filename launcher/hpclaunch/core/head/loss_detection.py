"""Loss detection: decides when an agent counts as lost, and its node with it, and when it is back.

The rules for a single agent are in consensus/presence.py.
"""

from __future__ import annotations

import math

from ..protocol.effects import Effect, Record
from ..protocol.facts import NodeCameBack, NodeHeard, NodesSilent
from ..protocol.timing import Timing
from .roster import Peer, Roster, hosts_of


class LossDetector:
    def __init__(self, roster: Roster, timing: Timing) -> None:
        self.roster = roster
        self.timing = timing
        self.check_at = math.inf  # no agent can become lost by silence before this time
        self._recorded: set[int] = set()  # the silent agents that were recorded
        self._unfit: set[int] = set()  # the agents whose last report says that they are unfit
        self._notice_at = math.inf  # when to record silent agents again

    def expect(self, peer: Peer) -> None:
        """Schedule the next check of this agent's silence. The head's own agent is not checked."""
        if peer.place.index != self.roster.me:
            self.check_at = min(self.check_at, self._deadline(peer))

    def _deadline(self, peer: Peer) -> float:
        """Return when to check an agent, if it is not heard before."""
        known = peer.place.index in self._recorded
        notice_at = math.inf if known else peer.presence.silent_at(self.timing.silence_notice)
        return min(peer.presence.deadline(), notice_at)

    def note(self, peer: Peer) -> list[Effect]:
        """Note an agent's new report, and record whether it is back, or is no longer silent."""
        index = peer.place.index
        self.roster.absent.discard(index)
        if bool(peer.unfit) != (index in self._unfit):
            self._unfit ^= {index}
            self.roster.changed()
        effects: list[Effect] = []
        if peer.can_come_back:
            peer.presence.come_back()
            self.roster.changed()
            effects = [Record(NodeCameBack(peer.host))]
        elif index in self._recorded and not peer.is_lost:
            effects = [Record(NodeHeard(peer.host))]
        self._recorded.discard(index)
        self.expect(peer)
        return effects

    def check(self, now: float) -> list[Peer]:
        """Return the agents that have become lost by their silence."""
        lost = []
        for peer in self.roster.others:
            if why := peer.presence.check(now):
                peer.presence.give_up(f"the agent on {peer.host} was lost: {why}")
                self._give_up(peer)
                lost.append(peer)
        return lost

    def notice(self, now: float) -> list[Effect]:
        """Record silent agents that are not lost yet, if it is time to do so."""
        others, first = self.roster.others, self.timing.silence_notice
        silent = [p for p in others if now >= p.presence.silent_at(first)]
        new = {p.place.index for p in silent} - self._recorded
        self._recorded &= {p.place.index for p in silent}
        effects: list[Effect] = []
        if new or (silent and now >= self._notice_at):
            self._recorded |= new
            self._notice_at = now + self.timing.next_notice
            most = max(now - p.presence.silent_at(0.0) for p in silent)
            left = self.timing.loss - most
            effects.append(Record(NodesSilent(hosts_of(silent), most, left)))
        self._notice_at = self._notice_at if silent else math.inf
        deadlines = [self._deadline(p) for p in others]
        self.check_at = min([self._notice_at, *deadlines])
        return effects

    def died(self, peer: Peer, now: float) -> list[Peer]:
        """Note that an agent is proven dead. Return [peer] if it was not lost before, else []."""
        evidence = peer.presence.contact.evidence(now, dead=True)
        return self._die(peer, now, f"the agent on {peer.host} was lost: {evidence}")

    def left(self, peer: Peer, now: float) -> list[Peer]:
        """Note that an agent has ended before the job. Return the same as `died`."""
        return self._die(peer, now, f"the agent on {peer.host} has left: it did not hear the head")

    def _die(self, peer: Peer, now: float, why: str) -> list[Peer]:
        was_lost = peer.is_lost
        peer.presence.die(now, why)
        self._give_up(peer)
        return [] if was_lost else [peer]

    def _give_up(self, peer: Peer) -> None:
        self.roster.absent.discard(peer.place.index)
        self.roster.changed()
