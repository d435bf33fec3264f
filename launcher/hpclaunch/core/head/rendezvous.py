"""Before a round: who is waited for, for how long, and what the user is told meanwhile."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

from ..consensus.leader_lease import LeaderLease
from ..protocol.effects import Diagnose, Effect, Say
from ..protocol.model import EXIT_LOST, Job, Phase, Verdict
from .cordon import uncordon
from .roster import Laggards, Peer, Roster, hosts_of

Groups = Callable[[], Collection[int]]


class Rendezvous:
    """Begins with `begin`. Agents that were never heard are waited for at the start of the job;
    nodes that are lost, where fewer than the fewest are left and one of them may come back.

    `update` takes in what has changed, and the questions that follow it change nothing.
    """

    def __init__(self, job: Job, roster: Roster, lease: LeaderLease) -> None:
        self.job, self.timing = job, job.timing
        self.roster = roster
        self.lease = lease
        self._since = 0.0
        self._short_since = math.inf  # since too few are left
        self._notice_at = math.inf
        self._laggards = Laggards()
        self._busy = Laggards()
        self._called = False  # nobody is waited for any more who was never heard
        self._taken_over = False  # but for those in the configuration of another head
        self._not_before = -math.inf  # in a pause, its end
        self._awaited_at = -math.inf  # somebody was who had never been heard

    def begin(self, now: float) -> None:
        self._since = now
        self._short_since = math.inf
        self._notice_at = now + self.timing.first_notice

    def take_over(self, now: float, *, begun: bool) -> None:
        """From another head, before or after the job's first round has begun."""
        self.begin(now)
        self._called = self._taken_over = begun

    def complete(self) -> None:
        """All who are waited for were here. Who has not come by now is not waited for again."""
        self._called, self._taken_over = True, False

    def pause(self, until: float) -> None:
        """Workers of one that has died may be there until then, or a node is given time. No reason
        to wait makes another one void: the latest counts."""
        self._not_before = max(self._not_before, until)

    @property
    def paused_until(self) -> float:
        return self._not_before if self._is_paused else math.inf

    def next_deadline(self) -> float:
        deadlines = [self.paused_until]
        if self._short_since == math.inf:
            deadlines.append(self._quorum_at)
        if self._awaits and not self._is_paused:
            enough = self._may_begin and len(self.roster.nodes) >= self._fewest
            limit = self.timing.last_call if enough else self.timing.join
            deadlines += [self._notice_at, self._since + limit]
        if self._short_since < math.inf:
            deadlines += [self._notice_at, self._short_since + self.timing.wait]
        return min(deadlines)

    # What there is

    @property
    def _fewest(self) -> int:
        return self.job.fewest or self.job.most or self.job.nodes

    @property
    def _awaits(self) -> bool:
        return not self._called and bool(self.roster.absent)

    @property
    def _may_begin(self) -> bool:
        """No more than a guess, at once: so many agents are here as there have to be nodes."""
        return len(self.roster) - len(self.roster.absent) >= self._fewest

    @property
    def _may_return(self) -> list[Peer]:
        """Those who are lost, or were never heard, and are not known to be dead."""
        peers = (p for p in self.roster if p.lost or p.report is None)
        return [p for p in peers if not p.presence.is_dead]

    @property
    def _is_hopeless(self) -> bool:
        """Too few would be left even if all came back that may."""
        never = {p.place.node for p in self.roster if p.unfit or p.presence.is_dead}
        return self.job.nodes - len(never) < self._fewest

    @property
    def _left(self) -> int:
        """Nodes that can take part, or may yet come."""
        settled = self._called and not self._taken_over
        return len(self.roster.nodes if settled else self.roster.possible)

    @property
    def is_short(self) -> bool:
        return self._left < self._fewest

    @property
    def _is_paused(self) -> bool:
        return self._not_before > -math.inf

    @property
    def _quorum_at(self) -> float:
        """When it is told that there is none. Before everybody is here nobody asks for it."""
        asked = not self._awaits and self.lease.until < math.inf
        begin = max(self._since, self._awaited_at, self.lease.until)
        return begin + self.timing.loss if asked else math.inf

    def _missing_voters(self, now: float) -> str:
        return hosts_of(self.roster[agent] for agent in self.lease.missing(now))

    # What has changed

    def update(self, now: float, *, ticked: bool) -> None:
        """`ticked`: no message is on its way that happened before now, so that time can tell."""
        if self._awaits:
            self._awaited_at = now
        if self._is_paused and now >= self._not_before:
            self._not_before = -math.inf
        if self._awaits and self._may_begin and not self._is_held_up:
            waited = now - self._since >= self.timing.last_call
            self._called = waited and len(self.roster.nodes) >= self._fewest
        if self.is_short:
            uncordon(self.roster)
        if not self.is_short and self._has_quorum(now, ticked=ticked):
            self._short_since = math.inf
        elif self._short_since == math.inf:
            self._short_since = self._notice_at = now

    def _has_quorum(self, now: float, *, ticked: bool) -> bool:
        """Or may have, until a message that is on its way is read or time is up."""
        if self._short_since < math.inf:
            return self.lease.holds(now)
        return not ticked or now < self._quorum_at

    @property
    def _is_held_up(self) -> bool:
        """Something of the last round may be left, on nodes that are out of the next one too."""
        if self._is_paused:
            return True
        if not self._taken_over:
            return False
        settled = self._busy.none(
            lambda: self.roster.present, lambda p: bool(p.lost) or not p.has_workers
        )
        return bool(self.roster.absent) or not settled

    # Whether it is over

    def is_ready(self, groups: Groups) -> bool:
        """Whether the round can begin on these nodes: all there are done with the one before."""
        if self._is_held_up:
            return False
        if self._awaits:
            everybody = self.job.most or self.job.nodes
            if not self._may_begin or len(self.roster.nodes) < everybody:
                return False
        if self.is_short:
            return False

        def there() -> list[Peer]:
            chosen = set(groups())
            return [p for p in self.roster if p.place.node in chosen]

        return self._laggards.none(there, lambda p: bool(p.out) or self._is_idle(p))

    def _is_idle(self, peer: Peer) -> bool:
        idle = peer.report is not None and peer.report.phase is Phase.IDLE
        return idle and self.lease.is_followed_by(peer.presence)

    def verdict(self, now: float, restarts: int) -> Verdict | None:
        """Why there is no next round."""
        waited, absent = now - self._since, self.roster.absent
        if absent and waited >= self.timing.join and len(self.roster.nodes) < self._fewest:
            names = hosts_of(self.roster.unheard)
            reason = (
                f"no agent came from {names} within {waited:.0f} s: is hpclaunch running "
                "there, and do the hosts see the same secret file?"
            )
            return Verdict(EXIT_LOST, reason)
        over = now >= self._short_since + self.timing.wait
        if self.is_short:
            return self._too_few(restarts) if over or self._is_hopeless else None
        return self._no_quorum(now, restarts) if over else None

    def _no_quorum(self, now: float, restarts: int) -> Verdict:
        names = self._missing_voters(now)
        reason = f"{names} cannot be reached, and those who are left are too few to go on alone: "
        reason += "the others may have gone on without them"
        return Verdict(EXIT_LOST, reason, restarts=restarts)

    def _too_few(self, restarts: int) -> Verdict:
        out, left = [p for p in self.roster if p.out], self._left
        first = out[0]
        why = first.lost or f"{hosts_of(p for p in out if not p.lost)}: {first.unfit}"
        if self.job.nodes == 1:
            why += "" if first.lost else " (--health off starts in spite of it)"
            return Verdict(EXIT_LOST, why)
        reason = f"{why}; {left} of {self.job.nodes} nodes are left, and the job needs "
        reason += str(self._fewest)
        if self._fewest == self.job.nodes:
            reason += f" (--nnodes {max(1, left)}:{self.job.nodes} goes on without those lost)"
        return Verdict(EXIT_LOST, reason, restarts=restarts)

    # What is said meanwhile

    def notice(self, now: float) -> list[Effect]:
        if now < self._notice_at:
            return []
        self._notice_at = now + self.timing.next_notice
        if self._short_since == math.inf:
            return [Diagnose()] if self._awaits else []
        most = self._short_since + self.timing.wait - now
        if not self.is_short:
            names = self._missing_voters(now)
            text = f"waiting for {names}: too few are left to go on without them; {most:.0f} s more"
            return [Say(text)]
        names, left = hosts_of(self._may_return), self._left
        text = f"waiting for {names}: {left} of {self._fewest} nodes are here; {most:.0f} s more"
        return [Say(text)]

    def explain(self, diagnosis: str, now: float) -> list[Effect]:
        """Some agents are still missing, and this may be why."""
        if not (unheard := self.roster.unheard):
            return []
        here = f"{len(self.roster) - len(unheard)} of {len(self.roster)} agents are here"
        why = f"; {diagnosis}" if diagnosis else ""
        waited = now - self._since
        return [Say(f"waiting for {hosts_of(unheard)} since {waited:.0f} s; {here}{why}")]
