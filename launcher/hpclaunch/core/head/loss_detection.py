"""Loss detection: decides when an agent counts as lost, and its node with it, and when it is back.

A round ends if an agent that takes part in it is lost. The rules for a single agent are in
consensus/presence.py.
"""

from __future__ import annotations

import math

from ..protocol import facts
from ..protocol.effects import Effect, Probe, Record
from ..protocol.facts import CordonKind, EndReason
from ..protocol.losses import Loss
from ..protocol.messages import Report
from ..protocol.model import Phase
from .head_state import HeadState
from .roster import Peer, hosts_of


class LossDetector:
    def __init__(self, state: HeadState) -> None:
        self.state, self.roster, self.timing = state, state.roster, state.timing
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

    # An agent is heard

    def hear(self, peer: Peer, report: Report, now: float) -> list[Effect]:
        """Note an agent's new report: the agent may have left before the end of the job, may be
        unfit, have arrived, be back, or no longer be silent.
        """
        state, index, node = self.state, peer.place.index, peer.place.node
        effects: list[Effect] = []
        was_absent = index in self.roster.absent
        if report.phase is Phase.ENDED and not (state.end.is_final or peer.is_lost):
            effects += self._die(peer, Loss.LEFT, now)
        self.roster.absent.discard(index)
        if bool(peer.unfit) != (index in self._unfit):
            self._unfit ^= {index}
            self.roster.changed()
        if not any(p.unfit for p in self.roster.of_node(node)):
            self.roster.recorded_unfit.discard(node)  # its agents were started again
        back: list[Effect] = []
        if peer.can_come_back:
            peer.presence.come_back()
            self.roster.changed()
            if not any(p.is_lost for p in self.roster.of_node(node)):
                back = [Record(facts.NodeCameBack(peer.host))]
        elif index in self._recorded and not peer.is_lost:
            silent = {self.roster[i].place.node for i in self._recorded - {index}}
            back = [] if node in silent else [Record(facts.NodeHeard(peer.host))]
        self._recorded.discard(index)
        self.expect(peer)
        if was_absent and state.current is not None and node in self.roster.nodes:
            effects.append(Record(facts.NodeArrived(peer.host)))
        if peer.unfit:
            self._end_round_without(peer)
        return effects + self._note_unfit(peer) + back

    def _note_unfit(self, peer: Peer) -> list[Effect]:
        """Record that the agent's node is cordoned for good, if it is unfit and that is new."""
        node, recorded, job = peer.place.node, self.roster.recorded_unfit, self.state.job
        if not peer.unfit or node in recorded:
            return []
        recorded.add(node)
        self.roster.last_out = peer
        more = (peer.unfit, job.slurm_id, job.alone)
        unfit = facts.NodesCordoned(self.state.round, (peer.host,), CordonKind.UNFIT, *more)
        return [Record(unfit)]

    # An agent is dead

    def closed(self, index: int, now: float) -> list[Effect]:
        """Ask an agent's host whether the agent is dead: its connection was closed."""
        peer = self.roster[index]
        peer.presence.contact.close(now)
        last = peer.report
        if peer.is_lost or last is None:
            return []
        return [Probe(index, last.address, last.port, last.incarnation)]

    def proven_dead(self, index: int, now: float) -> list[Effect]:
        """Note that an agent's host has confirmed that the agent is dead."""
        peer = self.roster[index]
        if not peer.presence.can_be_dead():
            return []
        self.state.rendezvous.pause(now + self.timing.killing)
        return self._die(peer, Loss.EXITED, now) + self.state.lease.renew(now)

    def _die(self, peer: Peer, loss: Loss, now: float) -> list[Effect]:
        was_lost = peer.is_lost
        peer.presence.die(now, loss)
        return [] if was_lost else self._exclude(peer)

    # An agent is silent

    def tick(self, now: float) -> list[Effect]:
        """Give up agents that have been silent for too long, and record those that may be next.
        Call it once every message that had arrived is handled.
        """
        if now < self.check_at:
            return []
        effects: list[Effect] = []
        for peer in self.roster.others:
            if loss := peer.presence.check(now):
                peer.presence.give_up(now, loss)
                effects += self._exclude(peer)
        return effects + self._notice(now)

    def _notice(self, now: float) -> list[Effect]:
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
            effects.append(Record(facts.NodesSilent(hosts_of(silent), most, left)))
        self._notice_at = self._notice_at if silent else math.inf
        deadlines = [self._deadline(p) for p in others]
        self.check_at = min([self._notice_at, *deadlines])
        return effects

    # The loss

    def _exclude(self, peer: Peer) -> list[Effect]:
        """Continue without an agent that was given up, and record the loss of its node if that is
        new. While the job ends, nothing is recorded: most likely the agent has left, and its last
        report was lost.
        """
        self.roster.absent.discard(peer.place.index)
        self.roster.last_out = peer
        self.roster.changed()
        self._end_round_without(peer)
        lost_before = any(p.is_lost for p in self.roster.of_node(peer.place.node) if p is not peer)
        if self.state.end.is_final or lost_before:
            return []
        return [Record(facts.NodeLost(peer.host, peer.why_lost))]

    def _end_round_without(self, peer: Peer) -> None:
        """End the round if the agent takes part in it."""
        current = self.state.current
        if current is not None and peer.assignment is not None:
            current.ends.add(EndReason.LOSS)
            why = peer.why_lost or f"{peer.host} is cordoned: {peer.unfit}"
            lost = facts.LostNode(peer.host, why, is_unfit=not peer.is_lost)
            current.lost.setdefault(peer.place.node, lost)
