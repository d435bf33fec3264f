"""Notifications: what the command of `--notify` gets."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from enum import Enum

from ..core.ending.table import ENDS
from ..core.head.restarts import how
from ..core.head.roster import CORDONED
from ..core.protocol import facts
from ..core.protocol.model import NO_RANK, EndCause
from ..core.protocol.values import value
from ..core.protocol.wording import count
from .console import words
from .end_causes import of_job, of_round
from .job_report import NODE_CAUSES

STORM, STORM_SECONDS = 3, 600.0  # so many failed rounds in so many seconds are a storm

Detail = str | int | float


class Topic(str, Enum):
    """A kind of notification."""

    ROUND_BEGAN = "round_began"
    ROUND_ENDED = "round_ended"  # early
    HANG = "hang"
    STRAGGLER = "straggler"
    NODE_CORDONED = "node_cordoned"
    NOTICE = "notice"  # the workers are given notice of the end
    RESTART_STORM = "restart_storm"
    SPARES_EXHAUSTED = "spares_exhausted"
    JOB_REQUEUED = "job_requeued"  # another run continues it
    JOB_OVER = "job_over"


@value(frozen=True)
class Notification:
    topic: Topic
    text: str
    round: int
    details: dict[str, Detail]  # the fields of its topic


class Notifications:
    """Makes notifications of the facts that this agent records while it leads."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._round = 0
        self._nodes = 0  # of the round
        self._hung = -1  # the last round with a hang
        self._keeps_spares = False
        self._spares: set[str] = set()
        self._failed: deque[float] = deque(maxlen=STORM)  # when the last rounds failed

    def note(self, fact: facts.Fact, now: float) -> list[Notification]:
        """Return the notifications of a fact. `now`: when it was recorded, in seconds."""
        if isinstance(fact, facts.HeadChanged | facts.HeadDeposed):
            self._begin()
        return list(self._note(fact, now))

    def _note(self, fact: facts.Fact, now: float) -> Iterator[Notification]:
        match fact:
            case facts.HeadChanged(was_running=True, ended=facts.RoundEnded(round=number)):
                self._round = number
                lost: dict[str, Detail] = {"cause": EndCause.LOST.value}
                yield Notification(Topic.ROUND_ENDED, words(fact), number, lost)
            case facts.RoundBegan():
                self._keeps_spares = fact.keeps_spares
                if fact.keeps_spares:
                    self._spares.update(fact.came)  # a new head does not know the spares before
                yield from self._exhausted(set(fact.spares), fact.round, fact.nodes)
                self._round, self._nodes = fact.round, fact.nodes
                yield _began(fact)
            case facts.RoundEnded() if fact.is_early:
                yield from self._round_ended(fact, now)
            case facts.HangFound() if fact.ends_in is not None or fact.round != self._hung:
                self._hung = fact.round
                about = _who(fact.host, fact.rank)
                if fact.ends_in is not None:
                    about["seconds_left"] = round(fact.ends_in, 1)
                yield Notification(Topic.HANG, words(fact), fact.round, about)
            case facts.StragglerNamed(host=host, rank=rank):
                about = _who(host, rank)
                yield Notification(Topic.STRAGGLER, words(fact), self._round, about)
            case facts.NoticeGiven(left=left):
                details: dict[str, Detail] = {"seconds_left": round(left, 1)}
                yield Notification(Topic.NOTICE, words(fact), fact.round, details)
            case facts.NodesCordoned(round=number, kind=kind, why=unfit):
                why = unfit or CORDONED[kind]
                for host in fact.hosts:
                    text, node = f"{host} is cordoned: {why}", {"node": host, "reason": why}
                    yield Notification(Topic.NODE_CORDONED, text, number, {**node})
                if kind is facts.CordonKind.UNFIT:
                    yield from self._exhausted(self._spares.difference(fact.hosts))
            case facts.NodeLost(host=host):
                yield from self._exhausted(self._spares - {host})
            case facts.NodeArrived(host=host) | facts.NodeCameBack(host=host):
                if self._keeps_spares:
                    self._spares.add(host)
            case facts.JobEnded():
                yield _job_ended(fact)

    def _exhausted(
        self, spares: set[str], number: int | None = None, nodes: int = 0
    ) -> Iterator[Notification]:
        """Set the spares. Yield a notification if the last one is gone, with the round `number`, or
        by default the running one.
        """
        had, self._spares = self._spares, spares
        if had and not spares:
            text = "no spare is left: the next node that is lost will not be replaced"
            number = self._round if number is None else number
            details: dict[str, Detail] = {"nodes": nodes or self._nodes}
            yield Notification(Topic.SPARES_EXHAUSTED, text, number, details)

    def _round_ended(self, fact: facts.RoundEnded, now: float) -> Iterator[Notification]:
        found = of_round(fact)
        details: dict[str, Detail] = {"cause": found.cause.value}
        text, has_failed = found.text, fact.has_failed
        if has_failed and found.cause not in NODE_CAUSES:
            first = fact.failures[0]
            text = how(first)
            details |= _who(first.host, first.rank) | {"exit_code": first.code}
            details |= {"detail": found.text} if found.text else {}
        yield Notification(Topic.ROUND_ENDED, text, fact.round, details)
        if not has_failed or fact.lost:
            return
        self._failed.append(now)
        lasted = now - self._failed[0]
        if len(self._failed) == STORM and lasted <= STORM_SECONDS:
            self._failed.clear()
            text = f"{STORM} rounds have failed within {lasted:.0f} s, the last one: {text}"
            yield Notification(Topic.RESTART_STORM, text, fact.round, details)


def _began(fact: facts.RoundBegan) -> Notification:
    text = f"round {fact.round} begins: {count(fact.nodes, 'node')}, {count(fact.ranks, 'rank')}"
    details: dict[str, Detail] = {"nodes": fact.nodes, "ranks": fact.ranks}
    if fact.checkpoint:
        text, details["checkpoint"] = f"{text}, from {fact.checkpoint}", fact.checkpoint
    return Notification(Topic.ROUND_BEGAN, text, fact.round, details)


def _job_ended(fact: facts.JobEnded) -> Notification:
    verdict = fact.verdict
    topic = Topic.JOB_REQUEUED if verdict.sequel.is_requeued else Topic.JOB_OVER
    details: dict[str, Detail] = {
        "result": ENDS[verdict.origin].kind.value,
        "exit_code": verdict.code,
        "cause": of_job(verdict).cause.value,
        "restarts": verdict.restarts,
    }
    text = f"{verdict.reason} (exit code {verdict.code})"
    return Notification(topic, text, fact.round, details)


def _who(host: str, rank: int) -> dict[str, Detail]:
    """Return the fields for a rank and its node, as far as they are known."""
    return {**({"node": host} if host else {}), **({} if rank == NO_RANK else {"rank": rank})}
