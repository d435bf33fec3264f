"""The past in a snapshot: the last rounds that ended early, and the newest checkpoint."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.head.restarts import how
from ..core.protocol import facts, node_facts
from ..core.protocol.job_snapshot import CheckpointSnapshot, PastRound
from .end_causes import of_round

MOST = 8  # rounds


class NewestCheckpoint:
    """The newest complete checkpoint. `note` gets the facts of one agent with their times."""

    def __init__(self) -> None:
        self._saved: tuple[float, facts.CheckpointSaved] | None = None
        # The newest on storage, with its step; None without --stage
        self._stored: tuple[str, int | None] | None = None

    def note(self, fact: facts.Fact, at: float) -> None:
        match fact:
            case facts.CheckpointSaved():
                self._saved = at, fact
            case facts.CheckpointGone():
                self._saved = None
            case node_facts.StageBegan(restored=path):
                self._stored = path, None
            case node_facts.StageRefused():  # the script saves to storage, now or soon
                self._stored = None
            case facts.CheckpointStored(path=path, step=step):
                if self._stored is not None:
                    _, known = self._stored
                    if known is None or step is None or step >= known:  # older ones may follow
                        self._stored = path, step
                self._note_stored(fact, at)

    def _note_stored(self, stored: facts.CheckpointStored, at: float) -> None:
        """Note it as the newest if it is: the next search for the newest may be seconds away."""
        step = None if self._saved is None else self._saved[1].step
        is_newer = stored.step is not None and step is not None and stored.step > step
        if self._saved is None or is_newer:
            self._saved = at, facts.CheckpointSaved(stored.path, stored.step, stored.size, None)

    def at(self, now: float) -> CheckpointSnapshot | None:
        """Return the checkpoint with its age; None if there is none."""
        if self._saved is None:
            return None
        at, saved = self._saved
        age = None if saved.age is None else saved.age + now - at
        stored = None if self._stored is None else self._stored[0]
        return CheckpointSnapshot(saved.path, saved.step, saved.size, age, stored)


def past_rounds(ends: Sequence[facts.RoundEnded], now: float) -> tuple[PastRound, ...]:
    """Return the last of these for a snapshot, the newest last."""

    def why(end: facts.RoundEnded) -> str:
        if end.is_programs_fault:
            return how(end.failures[0])
        return "; ".join(lost.why for lost in end.lost) or of_round(end).text

    return tuple(
        PastRound(end.round, now - end.seen, end.ranks, why(end), is_fault=end.is_programs_fault)
        for end in ends[-MOST:]
    )
