"""Before a round: who is waited for, for how long, and what the user is told meanwhile."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

from ..consensus.leader_lease import LeaderLease
from ..protocol.effects import Diagnose, Effect, Say
from ..protocol.model import EXIT_LOST, Job, Phase, Verdict
from .roster import Laggards, Peer, Roster, hosts_of


class Rendezvous:
    """Begins with `begin`. Agents that were never heard are waited for at the start of the job;
    nodes that are lost, where fewer than the fewest are left and one of them may come back.
    """

    def __init__(self, job: Job, roster: Roster, lease: LeaderLease) -> None:
        self.job = job
        self.roster = roster
        self.lease = lease
        self._since = 0.0
        self._short_since = math.inf  # since too few are left
        self._notice_at = math.inf
        self._laggards = Laggards()
        self._busy = Laggards()
        self._called = False  # nobody is waited for any more who was never heard
        self._succeeding = False  # but for those on the configuration of another head
        self._not_before = -math.inf  # in a pause, its end
        self._awaited_at = -math.inf  # somebody was who had never been heard

    def begin(self, now: float) -> None:
        self._since = now
        self._short_since = math.inf
        self._notice_at = now + self.job.timing.first_notice

    def take_over(self, now: float, *, begun: bool) -> None:
        """From another head, before or after the job's first round has begun."""
        self.begin(now)
        self._called = self._succeeding = begun

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
            limit = self.job.timing.last_call if enough else self.job.timing.join
            deadlines += [self._notice_at, self._since + limit]
        if self._short_since < math.inf:
            deadlines += [self._notice_at, self._short_since + self.job.timing.wait]
        return min(deadlines)

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
        """Those who are lost, or were never heard, and are not known to be gone."""
        return [p for p in self.roster if (p.lost and not p.gone) or p.report is None]

    @property
    def _is_hopeless(self) -> bool:
        """Too few would be left even if all came back that may."""
        never = {p.place.node for p in self.roster if p.unfit or p.gone}
        return self.job.nodes - len(never) < self._fewest

    @property
    def _left(self) -> int:
        """Nodes that can take part, or may yet come."""
        settled = self._called and not self._succeeding
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
        return begin + self.job.timing.loss if asked else math.inf

    def ready(self, now: float, groups: Callable[[], Collection[int]]) -> bool:
        """Whether the round can begin on these nodes: all there are done with the one before."""
        roster = self.roster
        if self._awaits:
            self._awaited_at = now
        if self._is_paused and now >= self._not_before:
            self._not_before = -math.inf
        if self._is_paused or (self._succeeding and not self._inherited()):
            return False
        if self._awaits:
            if not self._may_begin:
                return False
            here = len(roster.nodes)
            self._called = here >= self._fewest and now - self._since >= self.job.timing.last_call
            if not self._called and here < (self.job.most or self.job.nodes):
                return False
        if self.is_short:
            return False

        def there() -> list[Peer]:
            chosen = set(groups())
            return [p for p in roster if p.place.node in chosen]

        ready = self._laggards.none(there, lambda p: bool(p.out) or self._is_idle(p))
        self._called = self._called or ready
        self._succeeding = self._succeeding and not ready
        return ready

    def _inherited(self) -> bool:
        """Whether nothing of the last round is left, on nodes that are out of the next one too."""
        return not self.roster.absent and self._busy.none(
            lambda: self.roster.present, lambda p: bool(p.lost) or not p.has_workers
        )

    def verdict(self, now: float, restarts: int, *, ticked: bool) -> Verdict | None:
        """Why there is no next round."""
        waited, absent = now - self._since, self.roster.absent
        if absent and waited >= self.job.timing.join and len(self.roster.nodes) < self._fewest:
            names = hosts_of(self.roster.missing)
            reason = (
                f"no agent came from {names} within {waited:.0f} s: is hpclaunch running "
                "there, and do the hosts see the same secret file?"
            )
            return Verdict(EXIT_LOST, reason)
        if self.is_short:
            for peer in self.roster:
                peer.cordoned = ""  # better than nothing
            self.roster.changed()
        if not self.is_short and self._has_quorum(now, ticked=ticked):
            self._short_since = math.inf
            return None
        if self._short_since == math.inf:
            self._short_since = now
            self._notice_at = now
        over = now >= self._short_since + self.job.timing.wait
        if self.is_short:
            return self._too_few(restarts) if over or self._is_hopeless else None
        return self._no_quorum(now, restarts) if over else None

    def _no_quorum(self, now: float, restarts: int) -> Verdict:
        names = hosts_of(self.lease.missing(now))
        reason = f"{names} cannot be reached, and those who are left are too few to go on alone: "
        reason += "the others may have gone on without them"
        return Verdict(EXIT_LOST, reason, restarts=restarts)

    def _has_quorum(self, now: float, *, ticked: bool) -> bool:
        """Or may have, until a message that is on its way is read or time is up."""
        if self._short_since < math.inf:
            return self.lease.holds(now)
        return not ticked or now < self._quorum_at

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

    def notice(self, now: float) -> list[Effect]:
        if now < self._notice_at:
            return []
        self._notice_at = now + self.job.timing.next_notice
        if self._short_since == math.inf:
            return [Diagnose()] if self._awaits else []
        most = self._short_since + self.job.timing.wait - now
        if not self.is_short:
            names = hosts_of(self.lease.missing(now))
            text = f"waiting for {names}: too few are left to go on without them; {most:.0f} s more"
            return [Say(text)]
        names, left = hosts_of(self._may_return), self._left
        text = f"waiting for {names}: {left} of {self._fewest} nodes are here; {most:.0f} s more"
        return [Say(text)]

    def explain(self, diagnosis: str, now: float) -> list[Effect]:
        """Some agents are still missing, and this may be why."""
        if not (missing := self.roster.missing):
            return []
        here = f"{len(self.roster) - len(missing)} of {len(self.roster)} agents are here"
        why = f"; {diagnosis}" if diagnosis else ""
        waited = now - self._since
        return [Say(f"waiting for {hosts_of(missing)} since {waited:.0f} s; {here}{why}")]

    def _is_idle(self, peer: Peer) -> bool:
        report = peer.report
        return report is not None and report.phase is Phase.IDLE and self.lease.follows(report)
