"""After a failed round: which failure was the cause, and is there another round?"""

from __future__ import annotations

import re
import signal
from collections.abc import Collection
from dataclasses import replace

from ..protocol.events import CheckpointChosen
from ..protocol.messages import Report
from ..protocol.model import NO_STEP, Culprit, Failure, Tally, Verdict, WorkerExit, checksum
from ..protocol.wording import signal_name

MAX_CONSEQUENCES = 16  # a verdict goes to every agent: keep it small
# How the last line of a worker begins that will fail in the same way whenever it is started.
HOPELESS = ("ImportError:", "ModuleNotFoundError:", "SyntaxError:", "IndentationError:")
SUSPECT = 2  # failures in a row, all on one node
AGAIN, MOST_DELAY = 3, 30.0  # failures in a row there, and the most seconds to wait then
LOADS = 2  # failures in a row as it was loaded, after which a checkpoint is not used again
# What does the loading, in the traceback of a worker: torch's or safetensors' own load, and what is
# called load_state_dict, _load_checkpoint, from_pretrained. Not what loads data, or modules.
LOADING = re.compile(
    r'^  File "[^"]*/(?:torch|safetensors|deepspeed)/[^"]*", line \d+, in _*load\w*$|'
    r", in (?:\w*(?:load|restore|resume|read)\w*"
    r"(?:state|checkpoint|ckpt|snapshot|weights|sharded|optimizer|model)\w*|from_pretrained)$",
    re.MULTILINE,
)
TRACEBACK = "Traceback (most recent call last)"
# Not SIGABRT, with which NCCL's watchdog ends a worker that has waited for too long.
BROKEN = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)
ALIKE, AT_LEAST = 0.2, 2.0  # a share, or seconds, by which the times of two such ends may differ
BEYOND = 1 << 62  # a step that no training reaches
USAGE = 2  # the exit code of argparse, and of Python for a script that is not there
USAGE_WORDS = ("error: ", "can't open file")


def failed(e: WorkerExit) -> bool:
    """Whether this exit is a failure: not one by the signals with which its agent stopped it."""
    asked = e.stopped and e.signal in (signal.SIGTERM, signal.SIGKILL)
    return e.code != 0 and not asked


def failure(e: WorkerExit, number: int, host: str, now: float) -> Failure:
    """On the head's clock."""
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
    """The failures of one round, the cause first.

    The earliest exit is the cause: a peer notices a lost connection only once the first process
    is gone, and still has to unwind. Within one instant a death by signal comes before an exit,
    since nobody dies by SIGKILL or SIGSEGV because a peer went away. The end of a fork server or
    of the store is told later than it came, and by then a peer may have failed of it.
    """

    def key(f: Failure) -> tuple[float, ...]:
        worker = f.culprit is Culprit.WORKER
        return (f.stopped, worker, f.at, f.signal == 0, f.rank)

    return tuple(sorted(failures, key=key))


def how(failure: Failure) -> str:
    """One failure in words, for a line of text."""
    if failure.culprit is Culprit.FORK_SERVER:
        return f"the fork server on {failure.host} was killed with its workers"
    if failure.signal:
        ending = f"was killed by {signal_name(failure.signal)}"
    else:
        ending = f"exited with code {failure.code}"
    return f"{who(failure)} on {failure.host} {ending}"


def who(failure: Failure) -> str:
    """Which process wrote the last lines of a failure."""
    return "the store process" if failure.culprit is Culprit.STORE else f"rank {failure.rank}"


def asked_for(report: Report, restarts: int) -> Verdict | None:
    """How the job ends because of what an agent, and not a worker, reports; None if it does not."""
    if report.trouble is not None:
        return Verdict(report.trouble.code, report.trouble.reason, restarts=restarts)
    if report.stop_signal:
        reason = f"ended by {signal_name(report.stop_signal)} on {report.host}"
        return Verdict(128 + report.stop_signal, reason, restarts=restarts)
    return None


class Budget:
    """How often the job may still be started: `spend` after a failed round, `begin` before each.

    A new checkpoint is progress, and gives back what was spent. Whether there is one is known only
    when the next round begins: where the script saves, what would end the job waits until then.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.tally = Tally()
        self.suspect = ""  # the host to go on without: it may be the node, and there is a spare

    @property
    def total(self) -> int:
        """Restarts of the whole job."""
        return self.tally.restarts

    @property
    def used(self) -> int:
        """Since the last progress."""
        return self.tally.spent

    def spend(
        self,
        failures: Collection[Failure],
        *,
        saves: bool,
        spares: bool = False,
        resumed: str = "",
        begun: float = 0.0,
    ) -> Verdict | None:
        """None when there may be another round, else how the job ends. The round had `begun` with
        the checkpoint that it `resumed`, if any."""
        first, was = in_order(failures)[0], self.tally
        words = _words(first)
        times = was.times + 1 if first.host == was.host else 1
        self.suspect = first.host if spares and times >= SUSPECT else ""
        reason = self._exhausted()
        if self.most and not self.total and _is_hopeless(first, words):
            return _verdict(failures, f"it would fail again: {words}", 0)
        if self.most and words and checksum(words) == was.words and not self.suspect:
            reason = reason or f"as the round before did, with no checkpoint in between: {words}"
        doom = _verdict(failures, reason, self.total) if reason else None
        if doom is not None:
            self.suspect = ""
            if not (saves and self.most):
                return doom
        self.tally = replace(
            was,
            restarts=was.restarts + 1,
            spent=was.spent + 1,
            failed=True,
            words=checksum(words),
            host=first.host,
            times=times,
            doom=doom,
            lasted=first.at - begun,
            loads=_loads(first, was, resumed, first.at - begun),
        )
        return None

    def begin(self, choice: CheckpointChosen) -> Verdict | None:
        """The same, now that it is known which one the round would begin with."""
        was, mark = self.tally, checksum(choice.mark)
        step, scale = NO_STEP if choice.step is None else choice.step, checksum(choice.scale)
        comparable = scale == was.scale and NO_STEP not in (step, was.step)
        now = replace(
            was,
            checkpoint=mark,
            saved=max(choice.time, was.saved),
            step=max(step, was.step) if comparable else step,
            scale=scale,
            failed=False,
            doom=None,
            loads=was.loads if mark == was.checkpoint else 0,
        )
        if not (choice.path and was.restarts and self._is_further(choice, comparable=comparable)):
            self.tally = now
            return was.doom
        last = int(was.failed)  # what came after that checkpoint still counts
        host = was.host if last else ""
        self.tally = replace(now, spent=last, host=host, times=last, bar=NO_STEP)
        return None

    def _is_further(self, choice: CheckpointChosen, *, comparable: bool) -> bool:
        """Than what the last round began with, by its step, else by when it was saved. A script
        that saves whenever it fails would otherwise go on for ever."""
        was = self.tally
        if checksum(choice.mark) == was.checkpoint:
            return False
        if was.bar != NO_STEP and (choice.step is None or choice.step <= was.bar):
            return False
        if comparable:
            return choice.step is not None and choice.step > was.step
        return choice.time > was.saved or not choice.time

    def rejects(self, choice: CheckpointChosen) -> bool:
        """Whether resuming from it fails again and again: an older one may do."""
        tally = self.tally
        same = checksum(choice.mark) == tally.checkpoint
        return same and tally.loads >= LOADS and tally.spent <= self.most

    def avoid(self, choice: CheckpointChosen) -> None:
        """For the rest of the job. What an older one makes good again is no progress until it is
        beyond this one: a job that fails here each time has to end."""
        step = BEYOND if choice.step is None else choice.step
        self.tally = replace(
            self.tally,
            avoided=(*self.tally.avoided, checksum(choice.mark)),
            bar=max(self.tally.bar, step),
            loads=0,
            doom=None,
        )

    @property
    def delay(self) -> float:
        """Seconds to wait before the next round: a node that is at fault again and again may be
        about to go down, or come to itself."""
        times = self.tally.times
        return 0.0 if times < AGAIN else min(MOST_DELAY, 2.0 ** (times - AGAIN))

    def take_over(self, tally: Tally) -> None:
        """From another head."""
        self.tally = tally

    @property
    def words(self) -> str:
        if self.tally.doom is not None:
            return "it ends here, unless a checkpoint was saved since the last start"
        return f"restart {self.used} of {self.most}"

    def _exhausted(self) -> str:
        if self.used < self.most:
            return ""
        if not self.most:
            return "no restarts were allowed (--max-restarts 0)"
        spent = "the only restart is" if self.most == 1 else f"all {self.most} restarts are"
        return f"{spent} used up"


def _loads(first: Failure, was: Tally, resumed: str, lasted: float) -> int:
    """How many rounds in a row have failed like this one as they resumed. One that has begun to
    train fails in other places, or after another time."""
    if not resumed or first.culprit is not Culprit.WORKER:
        return 0
    if first.signal in BROKEN:
        alike = abs(lasted - was.lasted) <= max(AT_LEAST, ALIKE * lasted)
        return was.loads + 1 if alike else 1
    if first.signal:
        return 0
    _, _, traceback = first.tail.rpartition(TRACEBACK)
    return was.loads + 1 if LOADING.search(traceback) or resumed in traceback else 0


def _words(first: Failure) -> str:
    """How the cause has put it; "" where it did not end by itself."""
    own = not first.signal and first.culprit is not Culprit.FORK_SERVER
    lines = first.tail.strip().splitlines() if own else []
    return lines[-1].strip() if lines else ""


def _is_hopeless(first: Failure, words: str) -> bool:
    usage = first.code == USAGE and any(word in words for word in USAGE_WORDS)
    return usage or words.startswith(HOPELESS)


def _verdict(failures: Collection[Failure], reason: str, used: int) -> Verdict:
    first, *later = in_order(failures)
    return Verdict(
        code=first.code,
        reason=f"{how(first)} in round {first.round}, and {reason}",
        cause=first,
        consequences=tuple(replace(f, tail="") for f in later[:MAX_CONSEQUENCES]),
        restarts=used,
    )
