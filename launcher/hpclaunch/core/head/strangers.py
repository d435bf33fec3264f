"""Agents that have no part in the job: one without a place, and those of an earlier start."""

from __future__ import annotations

from ..protocol.effects import Effect, Send
from ..protocol.messages import PlaceGiven, Report
from ..protocol.model import Phase
from .course import Course


class Strangers:
    def __init__(self, course: Course) -> None:
        self.course = course
        self._places: dict[str, int] = {}  # that were given, by incarnation

    def answer(self, sender: int, report: Report, now: float) -> list[Effect] | None:
        """Answer a report; None if its agent has a part in the job."""
        if sender >= len(self.course.roster):
            return self._give_place(sender, report)
        return self._dismiss(sender, report, now) if self._is_of_before(report) else None

    def _give_place(self, sender: int, report: Report) -> list[Effect]:
        """Give the agent a place that nobody has had, if there is one. While agents of an earlier
        start end, they still have theirs.
        """
        places, roster = self._places, self.course.roster
        if report.incarnation not in places and not self.course.rendezvous.is_paused:
            free = roster.absent - {roster.me, *places.values()}
            places |= {report.incarnation: min(free)} if free else {}
        index = places.get(report.incarnation)
        return [] if index is None else [Send(sender, PlaceGiven(report.incarnation, index))]

    def _is_of_before(self, report: Report) -> bool:
        """Return whether an agent belongs to an earlier start of this head or, before the first
        round, to any other head: see `Course.knows_rounds`.
        """
        course = self.course
        if report.round < 0 or not course.knows_rounds:
            return report.round >= 0
        is_other = report.start not in ("", course.orders.start)
        return course.lease.is_of_ours(report.term) and is_other

    def _dismiss(self, sender: int, report: Report, now: float) -> list[Effect]:
        """Let it end, unless another head may have it."""
        course = self.course
        if course.job.elects and not course.knows_rounds:
            return []
        if report.phase is not Phase.ENDED:
            course.rendezvous.pause(now + course.timing.killing)
        return [course.orders.dismissal(sender, report)]
