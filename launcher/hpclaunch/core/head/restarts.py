"""After a failed round: which failure was the cause, and whether there is another round."""

from __future__ import annotations

import re
import signal
from collections.abc import Collection, Iterable

from ..ending.table import verdict
from ..protocol.crc import checksum
from ..protocol.effects import ChooseCheckpoint
from ..protocol.events import CheckpointChosen
from ..protocol.model import (
    END_SIGNALS,
    NO_RANK,
    NO_STEP,
    Culprit,
    Failure,
    Origin,
    Tally,
    Verdict,
    WorkerExit,
)
from ..protocol.values import replace
from ..protocol.wording import signal_name
from .last_lines import may_pass, without_ranks

MAX_CONSEQUENCES = 16  # a verdict goes to every agent: keep it small
SUSPECT_AFTER = 2  # failures in a row, all on one node
DELAY_AFTER, MAX_DELAY = 3, 30.0  # failures in a row on one node; seconds
OUTAGE_DELAY_AFTER = 2  # outages in a row, on any node
REJECT_AFTER = 2  # failures in a row while the same checkpoint was being loaded
FAILED_TWICE = "the job failed twice while it was resuming from it"
# The functions in a worker's traceback that load a checkpoint: those of torch, safetensors and
# DeepSpeed, and others with names such as load_state_dict, _load_checkpoint or from_pretrained.
# Functions that load data or modules do not match.
LOADING = re.compile(
    r'^  File "[^"]*/(?:torch|safetensors|deepspeed)/[^"]*", line \d+, in _*load\w*$|'
    r", in (?:\w*(?:load|restore|resume|read)\w*"
    r"(?:state|checkpoint|ckpt|snapshot|weights|sharded|optimizer|model)\w*|from_pretrained)$",
    re.MULTILINE,
)
TRACEBACK = "Traceback (most recent call last)"
LATE_REPORT = 1.0  # seconds that the report of a kill may take on busy machines
UNREACHABLE_STEP = 1 << 62


def passed_over(failed: Iterable[int]) -> tuple[tuple[int, str], ...]:
    """Return what a search must avoid: the checkpoints whose marks have these checksums."""
    return tuple((mark, FAILED_TWICE) for mark in failed)


def failed(e: WorkerExit) -> bool:
    """Return whether this exit is a failure. A worker that was killed by the signal with which the
    agent stopped it has not failed.
    """
    asked = e.stopped and e.signal in (*END_SIGNALS, signal.SIGKILL)
    return e.code != 0 and not asked


def failure(e: WorkerExit, number: int, host: str, now: float) -> Failure:
    """Make a failure of an exit in round `number`. Its time is on the head's clock."""
    return Failure(
        round=number,
        rank=e.rank,
        host=host,
        code=e.code,
        signal=e.signal,
        at=now - e.age,
        stopped=e.stopped,
        tail=e.tail,
        culprit=e.culprit,
    )


def in_order(failures: Collection[Failure]) -> tuple[Failure, ...]:
    """Return the failures of one round in order, the cause first.

    The earliest exit is the cause: a peer notices a lost connection only once the first process
    is gone, and then takes time to exit. A death by SIGKILL comes before an exit that seems to be
    a little earlier: the exit may be its consequence, but it is no consequence itself. Of two that
    happened at the same time, a death by another signal comes before an exit. The end of a fork
    server or of the store comes before any worker's: it is reported late, when workers may already
    have failed because of it.
    """

    def key(f: Failure) -> tuple[float, ...]:
        worker = f.culprit is Culprit.WORKER
        at = f.at - LATE_REPORT if f.signal == signal.SIGKILL else f.at
        return (f.stopped, worker, at, f.signal == 0, f.rank)

    return tuple(sorted(failures, key=key))


def how(failure: Failure) -> str:
    """Say in words how a worker or the store failed: "rank 0 on n1 exited with code 1"."""
    if failure.culprit is Culprit.FORK_SERVER:
        return f"the fork server on {failure.host} was killed with its workers"
    if failure.culprit is Culprit.HANG:
        known = failure.rank != NO_RANK
        return f"rank {failure.rank} on {failure.host} hung" if known else "the workers hung"
    if failure.signal:
        ending = f"was killed by {signal_name(failure.signal)}"
    else:
        ending = f"exited with code {failure.code}"
    return f"{who(failure)} on {failure.host} {ending}"


def who(failure: Failure) -> str:
    """Name the process that wrote the last lines of a failure."""
    return "the store process" if failure.culprit is Culprit.STORE else f"rank {failure.rank}"


class Budget:
    """The restarts that are left. Call `spend` after a failed round, and `begin` before each round.

    A new checkpoint is progress, and gives back all restarts. Whether there is one is known only
    when the next round is about to begin. So if the script saves checkpoints, a verdict that would
    end the job is kept pending until then. A new head continues with the `tally` of the one before.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.tally = Tally()
        self.suspect = ""  # a host that may be at fault and is to be replaced by a spare; "": none

    @property
    def total(self) -> int:
        """The restarts of the whole job."""
        return self.tally.restarts - self._pending

    @property
    def used(self) -> int:
        """The restarts since the last progress."""
        return self.tally.spent - self._pending

    @property
    def _pending(self) -> int:
        """1 while a verdict is pending: the last restart may not come."""
        return int(self.tally.pending_verdict is not None)

    def is_last(self, *, saves: bool) -> bool:
        """Return whether the job ends if this round fails; `saves` as in `spend`."""
        return self.used >= self.most and not (saves and self.most)

    def spend(
        self,
        failures: Collection[Failure],
        *,
        saves: bool,
        spares: bool = False,
        resumed: str = "",
    ) -> Verdict | None:
        """Note a failed round. Return how the job ends; None if there may be another round.

        `saves`: the script saves checkpoints. `spares`: there is a node that could take the place
        of another. `resumed`: the checkpoint that the round resumed from; "" for none.
        """
        cause, before = in_order(failures)[0], self.tally
        last_line = _last_line(cause)
        is_same_host = bool(cause.host) and cause.host == before.host  # "": not known
        in_a_row = before.failures_in_a_row + 1 if is_same_host else 1
        self.suspect = cause.host if spares and in_a_row >= SUSPECT_AFTER else ""
        passes = may_pass(last_line, cause.code)  # None: that is not known
        if self.most and not self.total and passes is False:
            return _verdict(failures, f"it would fail again: {last_line}")
        reason = self._exhausted()
        same = last_line and checksum(last_line) == before.last_line
        if self.most and same and not (self.suspect or passes or reason):
            reason = "the round before failed in the same way, with no checkpoint in between"
            reason += f": {last_line}"
        pending = _verdict(failures, reason) if reason else None
        if pending is not None:
            self.suspect = ""
            if not (saves and self.most):
                return pending
        self.tally = replace(
            before,
            restarts=before.restarts + 1,
            spent=before.spent + 1,
            failed=True,
            last_line=checksum(last_line),
            host=cause.host,
            failures_in_a_row=in_a_row,
            outages_in_a_row=before.outages_in_a_row + 1 if passes else 0,
            pending_verdict=pending,
            failed_loads=before.failed_loads + 1 if _was_loading(cause, resumed) else 0,
        )
        return None

    def begin(self, choice: CheckpointChosen) -> Verdict | None:
        """Note the checkpoint that the next round would begin with. Return how the job ends; None
        if the round may begin.
        """
        before, mark = self.tally, checksum(choice.mark)
        step, scale = NO_STEP if choice.step is None else choice.step, checksum(choice.scale)
        comparable = scale == before.scale and NO_STEP not in (step, before.step)
        now = replace(
            before,
            checkpoint=mark,
            saved=max(choice.time, before.saved),
            step=max(step, before.step) if comparable else step,
            scale=scale,
            failed=False,
            pending_verdict=None,
            failed_loads=before.failed_loads if mark == before.checkpoint else 0,
        )
        if before.first_saved < 0:
            now = replace(now, first_saved=choice.time, first_step=step, first_scale=scale)
        is_progress = self._is_progress(choice, comparable=comparable)
        if not (choice.path and before.restarts and is_progress):
            # With a verdict, no round begins, and the tally stays: a new head must decide the same.
            if before.pending_verdict is None:
                self.tally = now
            return before.pending_verdict
        spent = int(before.failed)  # the last failure came after that checkpoint, and still counts
        host = before.host if spent else ""
        self.tally = replace(
            now,
            spent=spent,
            host=host,
            failures_in_a_row=spent,
            outages_in_a_row=min(spent, before.outages_in_a_row),
            progress_above=NO_STEP,
        )
        return None

    def _is_progress(self, choice: CheckpointChosen, *, comparable: bool) -> bool:
        """Return whether the checkpoint is further than any that a round began with: by its step,
        or by when it was saved if the steps are not `comparable`. The step is the better measure: a
        script that saves the same step whenever it fails would otherwise be restarted for ever.
        """
        before = self.tally
        if checksum(choice.mark) == before.checkpoint:
            return False
        bar = before.progress_above
        if bar != NO_STEP and (choice.step is None or choice.step <= bar):
            return False
        if comparable:
            return choice.step is not None and choice.step > before.step
        return choice.time > before.saved or not choice.time

    def is_beyond_first(self, found: CheckpointChosen) -> bool:
        """Return whether a checkpoint is further than the one that the first round began with."""
        first = self.tally
        if not found.path or first.first_saved < 0:
            return False
        comparable = checksum(found.scale) == first.first_scale and first.first_step != NO_STEP
        if comparable and found.step is not None:
            return found.step > first.first_step
        return not first.first_saved or found.time > first.first_saved

    def rejects(self, choice: CheckpointChosen) -> bool:
        """Return whether loading it has failed so often that an older one should be tried."""
        tally = self.tally
        same = checksum(choice.mark) == tally.checkpoint
        return same and tally.failed_loads >= REJECT_AFTER and tally.spent <= self.most

    def avoid(self, choice: CheckpointChosen) -> None:
        """Do not use this checkpoint again in this job.

        Training that is repeated from an older checkpoint is no progress until it is beyond this
        one. So a job that fails at this point each time comes to an end.
        """
        step = UNREACHABLE_STEP if choice.step is None else choice.step
        self.tally = replace(
            self.tally,
            avoided=(*self.tally.avoided, checksum(choice.mark)),
            progress_above=max(self.tally.progress_above, step),
            failed_loads=0,
            pending_verdict=None,
        )

    @property
    def search(self) -> ChooseCheckpoint:
        """A search for the newest checkpoint, without its number."""
        return ChooseCheckpoint(passed_over(self.tally.avoided))

    @property
    def node_delay(self) -> float:
        """Seconds to wait before the next round if the job has several nodes: one that fails again
        and again may be about to go down, or may recover.
        """
        return _delay(self.tally.failures_in_a_row - DELAY_AFTER)

    @property
    def outage_delay(self) -> float:
        """Seconds to wait before the next round, so that a file system or a network may recover."""
        return _delay(self.tally.outages_in_a_row - OUTAGE_DELAY_AFTER)

    def _exhausted(self) -> str:
        if self.used < self.most:
            return ""
        if not self.most:
            return "no restarts were allowed (--max-restarts 0)"
        spent = "the only restart is" if self.most == 1 else f"all {self.most} restarts are"
        return f"{spent} used up"


def _delay(more: int) -> float:
    """Return the seconds to wait: twice as long with each further failure in a row."""
    return 0.0 if more < 0 else min(MAX_DELAY, 2.0**more)


def _was_loading(cause: Failure, resumed: str) -> bool:
    """Return whether the worker failed while it was loading this checkpoint, by its traceback."""
    if not resumed or cause.culprit is not Culprit.WORKER or cause.signal:
        return False
    _, _, traceback = without_ranks(cause.tail).rpartition(TRACEBACK)
    return bool(LOADING.search(traceback)) or resumed in traceback


def _last_line(cause: Failure) -> str:
    """Return the last line of the cause; "" if it was killed and did not end by itself."""
    by_itself = not cause.signal and cause.culprit is not Culprit.FORK_SERVER
    lines = without_ranks(cause.tail.strip()).splitlines() if by_itself else []
    return lines[-1].strip() if lines else ""


def _verdict(failures: Collection[Failure], reason: str) -> Verdict:
    cause, *later = in_order(failures)
    return verdict(
        Origin.FAILURE,
        f"{how(cause)} in round {cause.round}, and {reason}",
        failure=cause,
        consequences=tuple(replace(f, tail="") for f in later[:MAX_CONSEQUENCES]),
    )
