"""What somebody is told of a job who does not watch it (`--notify`).

Like the book, this only looks at the head after each event, and takes part in no decision. One head
tells each thing once. A head that has taken over tells nothing until a quorum follows it: another
agent may have been quicker.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..ledger.book import RoundEnd
from ..ledger.end_causes import has_failed, of_job
from ..ledger.job_report import OF_NODES, end_report
from ..ledger.last_lines import EndCause
from ..protocol.effects import Detail, Notify
from ..protocol.model import NO_RANK, Culprit, Topic
from ..protocol.stages import Stage
from ..protocol.wording import count
from .restarts import how
from .roster import Peer

if TYPE_CHECKING:
    from .head import Head

STORM, STORM_SECONDS = 3, 600.0  # so many failed rounds within this time are a storm


class Announcer:
    """Of one head, from when it begins to lead."""

    def __init__(self) -> None:
        self._is_new = True
        # The last rounds of which these were told
        self._begun = self._ended = self._hung = -1
        self._noticed: object = None
        self._straggler: object = None
        self._roster: object = None  # how it was
        self._cordoned: set[int] = set()  # nodes
        self._has_spares = False
        self._is_over = False
        self._failed: deque[float] = deque(maxlen=STORM)  # when the last rounds did

    def note(self, head: Head, end: RoundEnd | None, now: float) -> list[Notify]:
        """After each event. `end`: why the last round ended early, if one did."""
        if not head.is_confirmed:
            return []
        return [
            *self._takeover(head, end),
            *self._trouble(head, now),
            *self._end_of_round(end, now),
            *self._nodes(head),
            *self._begin_of_round(head),
            *self._end_of_job(head),
        ]

    def _takeover(self, head: Head, end: RoundEnd | None) -> Iterator[Notify]:
        """The round that ended with the last head is told of with that head's loss."""
        takeover, is_new, self._is_new = head.taken_over, self._is_new, False
        if takeover is not None and is_new:
            self._ended = takeover.last_round if end is None else end.round
            details: dict[str, Detail] = {"cause": EndCause.LOST.value}
            yield Notify(Topic.ROUND_ENDED, takeover.said, takeover.last_round, details)

    def _begin_of_round(self, head: Head) -> Iterator[Notify]:
        current = head.current
        if head.stage is not Stage.RUNNING or current is None:
            return
        if current.number == self._begun:
            return
        self._begun = current.number
        ranks = sum(p.assignment.nproc for p in current.participants if p.assignment is not None)
        nodes = len(current.groups)
        text = f"round {current.number} begins: {count(nodes, 'node')}, {count(ranks, 'rank')}"
        if current.resumed:
            text += f", from {current.resumed}"
        more: dict[str, Detail] = {"checkpoint": current.resumed} if current.resumed else {}
        yield _notify(head, Topic.ROUND_BEGAN, text, nodes=nodes, ranks=ranks, **more)

    def _end_of_round(self, end: RoundEnd | None, now: float) -> Iterator[Notify]:
        if end is None or end.round <= self._ended:
            return
        self._ended = end.round
        told = end_report(end)
        details: dict[str, Detail] = {"cause": told.cause}
        text = told.text
        first = end.failures[0] if has_failed(end) else None
        if first is not None and told.cause not in OF_NODES:
            text = how(first)
            details |= _who(first.host, first.rank) | {"exit_code": first.code}
            details |= {"detail": told.text} if told.text else {}
        yield Notify(Topic.ROUND_ENDED, text, end.round, details)
        if first is None or end.lost:
            return
        self._failed.append(now)
        lasted = now - self._failed[0]
        if len(self._failed) == STORM and lasted <= STORM_SECONDS:
            self._failed.clear()
            text = f"{STORM} rounds have failed within {lasted:.0f} s, the last one: {text}"
            yield Notify(Topic.RESTART_STORM, text, end.round, details)

    def _trouble(self, head: Head, now: float) -> Iterator[Notify]:
        """Of workers that run, and the notice that they are given."""
        current = head.current
        if current is None or head.stage not in (Stage.RUNNING, Stage.STOPPING):
            return
        hung = [f for f in current.failures.values() if f.culprit is Culprit.HANG]
        if hung and current.number != self._hung:
            self._hung = current.number
            yield _notify(head, Topic.HANG, head.hang_account, **_who(hung[0].host, hung[0].rank))
        named, before, self._straggler = head.straggler, self._straggler, head.straggler
        if named is not None and named != before:
            host = head.roster[named.agent].host
            yield _notify(head, Topic.STRAGGLER, named.account, **_who(host, named.rank))
        notices, left = head.notices, head.notices.left(now)
        noticed = (current.number, notices.given_account)  # there is another if the end is put off
        if notices.knows_end and left is not None and noticed != self._noticed:
            self._noticed = noticed
            yield _notify(head, Topic.NOTICE, notices.given_account, seconds_left=round(left, 1))

    def _nodes(self, head: Head) -> Iterator[Notify]:
        key = (head.stage, head.round, head.roster.changes, len(head.roster.absent))
        if key == self._roster:
            return
        self._roster = key
        out = {p.place.node: p for p in head.roster if _why_cordoned(p) and not p.lost}
        for node, peer in out.items():
            if node not in self._cordoned:
                text = f"{peer.host} is cordoned: {_why_cordoned(peer)}"
                details = {"node": peer.host, "reason": _why_cordoned(peer)}
                yield _notify(head, Topic.NODE_CORDONED, text, **details)
        self._cordoned = set(out)
        if not 0 < head.job.most < head.job.nodes or head.stage is not Stage.RUNNING:
            return
        spares = head.roster.nodes.difference(head.groups)
        had, self._has_spares = self._has_spares, bool(spares)
        if had and not spares:
            text = "no spare is left: the next node that is lost will not be replaced"
            yield _notify(head, Topic.SPARES_EXHAUSTED, text, nodes=len(head.groups))

    def _end_of_job(self, head: Head) -> Iterator[Notify]:
        verdict = head.verdict
        if verdict is None or self._is_over or head.stage not in (Stage.ENDING, Stage.ENDED):
            return
        self._is_over = True
        yield _notify(
            head,
            Topic.JOB_REQUEUED if verdict.sequel.goes_on else Topic.JOB_OVER,
            f"{verdict.reason} (exit code {verdict.code})",
            result=verdict.ending.value,
            exit_code=verdict.code,
            cause=of_job(verdict).cause.value,
            restarts=verdict.restarts,
        )


def _why_cordoned(peer: Peer) -> str:
    return peer.unfit or peer.cordoned


def _who(host: str, rank: int) -> dict[str, Detail]:
    """Of a hang that is nobody's, neither is known."""
    return {**({"node": host} if host else {}), **({} if rank == NO_RANK else {"rank": rank})}


def _notify(head: Head, topic: Topic, text: str, **details: Detail) -> Notify:
    return Notify(topic, text, head.round, details)
