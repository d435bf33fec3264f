"""The process that searches for checkpoints. It remembers what it has verified. Its agent ends it
when it has been idle for a while, and starts another for the next request.

A request (`messages.py`) interrupts reading, except a look with --verify full. Standard library
only.
"""

from __future__ import annotations

import json
import os
import resource
import select
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from hpclaunch.system.shared import disk
from hpclaunch.system.shared.prctl import die_with
from hpclaunch.worker.json_lines import AgentChannel, AgentGoneError
from hpclaunch.worker.messages import decode, never

from . import AHEAD, ALL, READS, messages
from .candidates import NOTHING_KNOWN, SECOND, CheckpointCandidate, Facts, RoundPeriod
from .finding import NOTHING, ExaminedCheckpoint, examine, look_at, others, roots, search
from .listing import TROUBLE
from .reading import CheckpointReading, Outcome, ResultCache

PERIOD = 10.0  # least seconds between two periodic searches
TROUBLED = 60.0  # seconds in which a search is tried again while the file system has trouble
AGAIN = 1.0  # seconds until the next try
SHARE = 0.01  # largest share of the time that periodic searches take
MOST = 64  # checkpoints in one reply
NICE = 5
MOST_MEMORY = 8 << 30  # bytes; a damaged pickle that claims more is an error, and uses up nothing
STACK = 8 << 20  # bytes for each thread, as is usual on Linux
# Where scripts save: the defaults of Lightning, the HF Trainer (several versions), torchtitan and
# Hydra, and what tutorials and examples use; narrow ones before wide ones.
DEFAULTS = (
    *("lightning_logs/**", "trainer_output", "tmp_trainer", "outputs/**", "runs/**"),
    *("checkpoints", "checkpoint", "ckpts", "ckpt", "snapshots", "saved", "output", "out"),
    *("results", "models", "."),
)


class CheckpointService:
    """Answers requests about one directory, or pattern of directories."""

    def __init__(self, where: str, exclude: tuple[str, ...], complete: str, verify: str) -> None:
        self.where = where
        self.exclude, self.complete, self.verify = exclude, complete, verify
        self.opens = verify != "off"
        self.cache = ResultCache()
        self._spent: dict[str, float] = {}  # seconds of reading, by the mark of a checkpoint
        self._whole: set[str] = set()  # marks of checkpoints whose every byte was read
        self.rounds: messages.RoundTimes = ()
        self._avoid: Mapping[int, str] = NOTHING
        self.watches = False
        self.period = PERIOD

    def search(
        self, rounds: messages.RoundTimes, avoid: Mapping[int, str] = NOTHING
    ) -> list[ExaminedCheckpoint]:
        """Return what `finding.search` finds, and remember the arguments. Raises OSError."""
        self.rounds, self._avoid = rounds, avoid
        facts = self.facts(rounds)
        return search(self.where, facts, self.cache, opens=self.opens, avoid=avoid)

    def examine(
        self,
        rounds: messages.RoundTimes = (),
        is_wanted: Callable[[CheckpointCandidate], bool] = lambda _: True,
    ) -> Iterator[ExaminedCheckpoint]:
        """Yield what `finding.examine` yields. Raises OSError."""
        facts = self.facts(rounds)
        return examine(self.where, facts, self.cache, opens=self.opens, is_wanted=is_wanted)

    def facts(self, rounds: messages.RoundTimes) -> Facts:
        """Return what the search knows of checkpoints, with these rounds of the job."""
        now = time.time_ns()
        known = tuple(
            RoundPeriod(begun or 0, ended or now, world or 0) for begun, ended, world in rounds
        )
        return Facts(self.exclude, self.complete, known)

    def is_read(self, found: ExaminedCheckpoint) -> bool:
        """Return whether every byte was read, or --verify reads none."""
        return self.verify not in READS or found.candidate.mark in self._whole

    def look_at(self, asked: messages.LookAt, is_asked: Callable[[], bool]) -> tuple[str, str]:
        """Return the fields `missing` and `damage` of the answer."""
        path, facts, (k, n) = asked.path, self.facts(asked.rounds), asked.share
        try:
            found = look_at(self.where, path, facts, self.cache, opens=self.opens)
        except OSError as e:
            return e.strerror or str(e), ""
        if found is None:
            there = os.path.lexists(path)
            return "it is no checkpoint" if there else "there is no such file", ""
        if damage := self.cache.damage.get(found.candidate.mark):
            return "", damage
        if found.lacks is not None:
            return found.lacks, ""
        differs = found.size != asked.size or abs(found.candidate.time - asked.time) > SECOND
        if asked.size >= 0 and differs:
            return f"there is another one of that name, of {found.size} bytes", ""
        if not n or self.is_read(found):
            return "", ""
        must_read = self.verify == "full"
        return "", self.read(found, None if must_read else is_asked, share=(k, n)).wrong

    def read(
        self,
        found: ExaminedCheckpoint,
        is_asked: Callable[[], bool] | None = None,
        *,
        share: tuple[int, int] = ALL,
    ) -> Outcome:
        """Read a checkpoint that a search has found complete, as much as time allows."""
        mark = found.candidate.mark
        spent = self._spent.get(mark, 0.0)
        limit = float("inf") if self.verify == "full" else max(0.0, AHEAD - spent)
        began = time.monotonic()
        outcome = CheckpointReading(
            found.parts, self.cache, until=began + limit, is_asked=is_asked, share=share
        ).run()
        if outcome.wrong and not outcome.is_lasting:
            return outcome  # not counted: the next reading has as much time
        self._spent[mark] = spent + time.monotonic() - began
        if outcome.wrong:
            self.cache.damage[mark] = outcome.wrong
        elif share == ALL and outcome.is_complete:
            self._whole.add(mark)
        return outcome

    def read_ahead(self, is_asked: Callable[[], bool]) -> None:
        """Search, and read the newest checkpoint before anybody needs it."""
        began = time.monotonic()
        try:
            last = self.search(self.rounds, self._avoid)[-1:]
        except OSError:
            return  # the answer to the next request reports it
        finally:
            self.period = max(PERIOD, (time.monotonic() - began) / SHARE)
        for found in last:
            if found.lacks is None and self.verify in READS:
                self.read(found, is_asked)


def seen(found: ExaminedCheckpoint, *, is_read: bool = False) -> messages.FoundCheckpoint:
    """Return the description of a checkpoint for a reply."""
    candidate, step = found.candidate, found.candidate.step
    return messages.FoundCheckpoint(
        path=candidate.path,
        name=candidate.name,
        format=candidate.format.name,
        step=None if step is None else step.value,
        scale=None if step is None else step.scale,
        rule=found.rule,
        identity=candidate.mark,
        time=candidate.time,
        size=found.size,
        took=found.took,
        is_read=is_read,
        lacks=found.lacks,
        quiet=found.quiet,
        later="" if found.later is None else found.later.name,
        later_time=0 if found.later is None else found.later.time,
    )


def places_of_script(arguments: Iterable[str]) -> list[str]:
    """Return where a script with these arguments may save, in the form that --checkpoint-dir takes.
    Directories that the arguments name are first.
    """
    named = [word.partition("=")[2] or word for word in arguments]
    there = [os.path.normpath(word) for word in named if word and os.path.isdir(word)]
    return list(dict.fromkeys([*there, *(os.path.join(word, "**") for word in there), *DEFAULTS]))


def newest_in(places: Iterable[str], since: int) -> tuple[str, ExaminedCheckpoint] | None:
    """Return (pattern, checkpoint) for the newest complete one that was saved since then (ns)."""
    best: tuple[str, ExaminedCheckpoint] | None = None
    for place in places:
        try:
            found = search(place, NOTHING_KNOWN)
        except OSError:  # too many directories, or none that can be read
            continue
        for each in found[-1:]:
            time = each.candidate.time
            is_newer = best is None or time > best[1].candidate.time
            if each.lacks is None and time >= since and is_newer:
                best = place, each
    return best


def _limit_memory() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = MOST_MEMORY if soft == resource.RLIM_INFINITY else min(soft, MOST_MEMORY)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    threading.stack_size(STACK)  # that of `ulimit -s` may be larger than all of this


def main(fd: str, _blocked: str, agent: str, settings: str) -> None:
    if not die_with(int(agent)):
        return
    os.nice(NICE)  # it also runs while the workers compute
    _limit_memory()
    server = CheckpointService(**json.loads(settings))
    channel = AgentChannel(fd)

    def is_asked() -> bool:
        return bool(select.select([channel], [], [], 0)[0])

    try:
        while True:
            wait = server.period if server.watches else None
            if not select.select([channel], [], [], wait)[0]:
                server.read_ahead(is_asked)
                continue
            for request in channel.read():
                for reply in _replies(server, decode(messages.REQUESTS, request), is_asked):
                    channel.send(reply.encoded())
    except AgentGoneError:
        pass


def _found(
    server: CheckpointService,
    rounds: messages.RoundTimes,
    avoid: Mapping[int, str],
    is_asked: Callable[[], bool],
) -> tuple[list[ExaminedCheckpoint], list[str]]:
    """Return what a search finds, and the directories that it belongs to. While the file system has
    trouble, such as a server that is started again, search again for a while. Raises OSError.
    """
    until = time.monotonic() + TROUBLED
    while True:
        try:
            found = server.search(rounds, avoid)
            if found and not os.path.isdir(server.where):  # a pattern may take long to match
                return found, [os.path.dirname(found[-1].candidate.path)]
            return found, roots(server.where)
        except OSError as e:
            if e.errno not in TROUBLE or is_asked() or time.monotonic() >= until:
                raise
        time.sleep(AGAIN)


def _replies(
    server: CheckpointService, request: messages.Request, is_asked: Callable[[], bool]
) -> Iterator[messages.Reply]:
    match request:
        case messages.Search(id=number, rounds=rounds, avoid=avoid):
            yield messages.Begun(number)
            try:
                found, places = _found(server, rounds, avoid, is_asked)
            except OSError as e:
                yield messages.Failed(number, str(e))
                return
            room = disk.look(Path(next(iter(places), server.where)))
            shown = tuple(seen(f, is_read=server.is_read(f)) for f in found[-MOST:])
            rest = () if found else tuple(others(places))
            yield messages.Searched(number, shown, room, rest)
        case messages.LookAt(id=number):
            yield messages.Begun(number)
            yield messages.Looked(number, *server.look_at(request, is_asked))
        case messages.Suggest(arguments=arguments, since=since):
            match newest_in(places_of_script(arguments), since):
                case (where, one):
                    yield messages.Suggested(where, one.candidate.path)
                case _:
                    yield messages.Suggested("", "")
        case messages.Watch(on=on, rounds=rounds):
            server.watches, server.rounds = on, rounds
        case _:
            never(request)
