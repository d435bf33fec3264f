"""What the head learns of the agents: who is there, who is lost, who is back."""

from __future__ import annotations

import math

from ..protocol.effects import Effect, Say
from ..protocol.messages import Report
from ..protocol.model import Job, Phase
from . import cordon
from .roster import Peer, Roster


class LossDetector:
    def __init__(self, job: Job, roster: Roster) -> None:
        self.job, self.roster = job, roster
        self.look_at = math.inf  # nobody is lost before
        self.hit = False  # a node with workers was: then their end is not the program's fault
        self.ending = False  # who is lost now has left, and its last word did not arrive
        self._announced: set[int] = set()  # the nodes that were set aside

    def expect(self, peer: Peer) -> None:
        if peer.place.index != self.roster.me:
            self.look_at = min(self.look_at, peer.deadline(self.job))

    def note(self, peer: Peer, report: Report, number: int) -> list[Effect]:
        """A report that is news, while round `number` is on."""
        self.roster.absent.discard(peer.place.index)
        if peer.assignment is not None:
            fenced = report.fenced and report.round == number
            self.hit = self.hit or fenced or bool(peer.unfit)
        if report.unfit:
            self.roster.changed()
        effects: list[Effect] = []
        if peer.unfit and peer.place.node not in self._announced and not self.job.alone:
            self._announced.add(peer.place.node)
            effects.append(Say(cordon.announce(peer, self.job)))
        if report.phase is Phase.ENDED and not self.ending and not peer.lost:
            peer.gone = True
            effects += self._lose(peer, f"the agent on {peer.host} has left: it did not hear us")
        if peer.come_back():
            self.roster.changed()
            effects.append(Say(f"{peer.host} is back"))
        self.expect(peer)  # from now on, should this have been its last word
        return effects

    def look(self, now: float) -> list[Effect]:
        """For those who are lost by now."""
        effects: list[Effect] = []
        for peer in self.roster.others:
            if peer.look(now, self.job):
                effects += self._lose(peer, peer.lost)
        self.look_at = min((p.deadline(self.job) for p in self.roster.others), default=math.inf)
        return effects

    def _lose(self, peer: Peer, why: str) -> list[Effect]:
        peer.lost = why
        self.hit = self.hit or peer.assignment is not None
        self.roster.absent.discard(peer.place.index)
        self.roster.changed()
        return [] if self.ending else [Say(why)]
