"""The process that searches for checkpoints. It remembers what it has verified. Its agent ends it
when it has been idle for a while, and starts another for the next request.

A request (`messages.py`) interrupts whatever it is doing unasked. Standard library only.
"""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from hpclaunch.system.shared import disk
from hpclaunch.system.shared.prctl import die_with
from hpclaunch.worker.json_lines import AgentChannel, AgentGoneError
from hpclaunch.worker.messages import decode, never

from . import AHEAD, ALL, READS, messages
from .candidates import SECOND, Facts, RoundPeriod
from .finding import NOTHING, ExaminedCheckpoint, look_at, others, roots, search
from .reading import CheckpointReading, Memory, Outcome
from .suggestions import newest, patterns

PERIOD = 10.0  # seconds between two searches without being asked, at least
SHARE = 0.01  # of its time that these searches may take
MOST = 64  # checkpoints in one reply
NICE = 5


class CheckpointService:
    """Answers requests about one directory, or pattern of directories."""

    def __init__(self, where: str, exclude: tuple[str, ...], complete: str, verify: str) -> None:
        self.where = where
        self.exclude, self.complete, self.verify = exclude, complete, verify
        self.memory = Memory()
        self._known: dict[str, ExaminedCheckpoint] = {}  # those complete, by path
        self._spent: dict[str, float] = {}  # seconds of reading, by the mark of a checkpoint
        self._whole: set[str] = set()  # the marks of those of which every byte was read
        self._rounds: messages.RoundTimes = ()
        self._avoid: Mapping[int, str] = NOTHING
        self.watches = False
        self.period = PERIOD

    def search(
        self, rounds: messages.RoundTimes, avoid: Mapping[int, str] = NOTHING
    ) -> list[ExaminedCheckpoint]:
        """Raises OSError."""
        self._rounds, self._avoid = rounds, avoid
        facts = self._facts(rounds)
        opens = self.verify != "off"
        found = search(self.where, facts, self.memory, opens=opens, avoid=avoid)
        self._known |= {f.candidate.path: f for f in found if f.lacks is None}
        return found

    def watch(self, rounds: messages.RoundTimes, *, on: bool) -> None:
        """From now on, search without being asked; or no longer."""
        self.watches, self._rounds = on, rounds

    def _facts(self, rounds: messages.RoundTimes) -> Facts:
        now = time.time_ns()
        known = tuple(
            RoundPeriod(begun or 0, ended or now, world or 0) for begun, ended, world in rounds
        )
        return Facts(self.exclude, self.complete, known)

    def is_read(self, found: ExaminedCheckpoint) -> bool:
        """Whether all of it was read, or none of it is to be."""
        return self.verify not in READS or found.candidate.mark in self._whole

    def see(
        self,
        path: str,
        size: int,
        written: int,
        share: tuple[int, int],
        rounds: messages.RoundTimes,
        is_asked: Callable[[], bool],
    ) -> tuple[str, str]:
        """(why it is not here or not the same, what is wrong with its bytes); "" for nothing."""
        opens = self.verify != "off"
        try:
            found = look_at(self.where, path, self._facts(rounds), self.memory, opens=opens)
        except OSError as e:
            return e.strerror or str(e), ""
        if found is None:
            there = os.path.lexists(path)
            return "it is not taken for a checkpoint" if there else "there is no such file", ""
        if damage := self.memory.damage(found.candidate.mark):
            return "", damage
        if found.lacks is not None:
            return found.lacks, ""
        if size >= 0:
            other = found.size != size or abs(found.candidate.time - written) > SECOND
            if other:
                return f"there is another one of that name, of {found.size} bytes", ""
        if not share[1] or self.is_read(found):
            return "", ""
        self._known[path] = found
        if self.verify == "full":
            is_asked = _never
        return "", self.read(path, is_asked, share=share)[0]

    def read(
        self,
        path: str,
        is_asked: Callable[[], bool],
        *,
        share: tuple[int, int] = ALL,
    ) -> Outcome:
        """Read one that a search has found complete."""
        found = self._known[path]
        mark = found.candidate.mark
        spent = self._spent.get(mark, 0.0)
        limit = float("inf") if self.verify == "full" else max(0.0, AHEAD - spent)
        began = time.monotonic()
        reading = CheckpointReading(
            found.parts, self.memory, until=began + limit, is_asked=is_asked, share=share
        )
        outcome = reading.run()
        self._spent[mark] = spent + time.monotonic() - began
        if outcome.wrong and reading.lasts:
            self.memory.note_damage(mark, outcome.wrong)
        elif share == ALL and not outcome.wrong and not outcome.left:
            self._whole.add(mark)
        return outcome

    def read_ahead(self, is_asked: Callable[[], bool]) -> None:
        """Read what was saved meanwhile, before anybody needs it."""
        began = time.monotonic()
        try:
            newest = self.search(self._rounds, self._avoid)[-1:]
        except OSError:
            return  # whoever needs one asks, and is told
        finally:
            self.period = max(PERIOD, (time.monotonic() - began) / SHARE)
        for found in newest:
            if found.lacks is None and self.verify in READS:
                self.read(found.candidate.path, is_asked)


def _never() -> bool:
    return False


def seen(found: ExaminedCheckpoint, *, is_read: bool = False) -> messages.FoundCheckpoint:
    """Return a checkpoint as it stands in a reply."""
    candidate, step = found.candidate, found.candidate.step
    return messages.FoundCheckpoint(
        path=candidate.path,
        name=candidate.name,
        format=candidate.format.name,
        step=None if step is None else step.value,
        unit=None if step is None else step.unit,
        rule=found.rule,
        identity=candidate.mark,
        time=candidate.time,
        size=found.size,
        took=found.took,
        is_read=is_read,
        world=candidate.world,
        lacks=found.lacks,
        quiet=found.quiet,
    )


def main(fd: str, _blocked: str, agent: str, settings: str) -> None:
    if not die_with(int(agent)):
        return
    os.nice(NICE)  # it reads ahead while the workers compute
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


def _replies(
    server: CheckpointService, request: messages.Request, is_asked: Callable[[], bool]
) -> Iterator[messages.Reply]:
    match request:
        case messages.Search(id=number, rounds=rounds, avoid=avoid):
            yield messages.Begun(number)
            try:
                found = server.search(rounds, avoid)
            except OSError as e:
                yield messages.Failed(number, str(e))
                return
            first = next(iter(roots(server.where)), server.where)
            room = disk.look(Path(first))
            shown = tuple(seen(f, is_read=server.is_read(f)) for f in found[-MOST:])
            yield messages.Searched(number, shown, room, tuple(others(server.where, found)))
        case messages.LookAt(id=number, path=path, size=size, time=written, rounds=rounds):
            yield messages.Begun(number)
            k, n = request.share
            wrong = server.see(path, size, written, (k, n), rounds, is_asked)
            yield messages.Looked(number, *wrong)
        case messages.Suggest(arguments=arguments, since=since):
            match newest(patterns(arguments), since):
                case (where, one):
                    yield messages.Suggested(where, one.candidate.path)
        case messages.Watch(on=on, rounds=rounds):
            server.watch(rounds, on=on)
        case _:
            never(request)
