"""The use of the job's seats, as the head records it for the ledger: a fact at every change.

How the workers of a round spent their time is recorded at its end, in `RoundEnded.shares`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..protocol import host_lists
from ..protocol.effects import Effect, Record
from ..protocol.facts import Category, SeatUse
from ..protocol.stages import Stage
from .roster import Peer
from .round import IN_ROUND

if TYPE_CHECKING:
    from .head_state import HeadState


class SeatUses:
    """The record of the seats' use, which is written again when it changes."""

    def __init__(self) -> None:
        self._known: tuple[object, ...] = ()
        self._use: SeatUse | None = None  # as it was recorded last

    def note(self, state: HeadState, stage: Stage, now: float) -> list[Effect]:
        absent = state.roster.absent
        here = len(absent) if state.knows_rounds else bool(absent)
        known = (stage, state.round, state.roster.changes, here)
        if known == self._known:
            return []
        # `with_last` evaluates all reports, so it is set only when a round begins to stop: how it
        # ended would be lost with this head.
        is_stopped = stage is Stage.STOPPING and known[:2] != self._known[:2]
        self._known, before = known, self._use
        self._use = seat_use(state, stage, now, with_last=is_stopped)
        return [] if self._use == before else [Record(self._use)]


def seat_use(state: HeadState, stage: Stage, now: float, *, with_last: bool = True) -> SeatUse:
    """Return the use of the seats. `with_last`: also how the round that runs, or is being stopped,
    would end if it ended now.
    """
    current = state.current if stage in IN_ROUND else None
    seats = state.roster.seats if current is None else current.seats
    found: dict[Category, float] = {}
    nodes: dict[str, Category] = {}
    for peer, each in zip(state.roster, seats, strict=True):
        category = _category(state, stage, peer)
        found[category] = found.get(category, 0.0) + each
        nodes.setdefault(peer.host, category)
    return SeatUse(
        state.lease.tenure,
        {category: each for category, each in found.items() if each},
        round=state.round if stage is Stage.RUNNING else None,
        last=current.ended(now) if with_last and current is not None else None,
        nodes=_by_category(nodes),
        are_gpus=any(peer.report is not None and peer.report.gpus for peer in state.roster),
        restarts=state.budget.total,
    )


def _by_category(nodes: Mapping[str, Category]) -> dict[Category, str]:
    found: dict[Category, list[str]] = {}
    for host, category in nodes.items():
        found.setdefault(category, []).append(host)
    return {category: host_lists.written(hosts) for category, hosts in found.items()}


def _category(state: HeadState, stage: Stage, peer: Peer) -> Category:
    if stage is Stage.RUNNING and peer.assignment is not None:
        return Category.UNKNOWN
    if peer.report is None and not peer.out:
        return Category.WAITING
    if stage in (Stage.ENDING, Stage.ENDED):
        return Category.END
    if peer.out:
        return Category.LOST
    if stage is Stage.RUNNING or (stage is Stage.STOPPING and peer.assignment is None):
        return Category.SPARE
    if stage is Stage.STOPPING:
        return Category.RESTART if state.end.verdict is None else Category.END
    begun = state.knows_rounds
    if stage is Stage.RENDEZVOUS and state.rendezvous.is_short:
        return Category.WAITING
    if stage is Stage.RENDEZVOUS and state.roster.absent and not begun:
        return Category.WAITING
    return Category.RESTART if begun else Category.START
