"""The stager: the process that copies checkpoints between the staging directory and storage.

It looks into the staging directory once a second, and copies ("drains") the newest complete
checkpoint that is not on storage yet. It serves requests (`messages.py`) also between two pieces of
a copy. If its agent dies without having closed its client, it drains what is left, removes the
staging directory, and ends. Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

from hpclaunch.system.checkpoints.candidates import SETTLED
from hpclaunch.system.checkpoints.finding import ExaminedCheckpoint, look_at, roots
from hpclaunch.system.checkpoints.messages import RoundTimes
from hpclaunch.system.checkpoints.service import CheckpointService
from hpclaunch.system.shared.helper import say_now
from hpclaunch.worker.json_lines import AgentChannel, AgentGoneError
from hpclaunch.worker.messages import decode

from . import messages, stage_directory
from .contents import HERE, Contents, contents_of, is_same, notes
from .copying import THREADS, Between, GivenUpError, at_once, copy, hold, is_unchanged, make_parents
from .deletion import Deletion
from .other_files import OtherFiles, keep
from .publishing import draft, is_copied, publish, same, sweep
from .record import Record
from .removal import rmtree
from .restoring import Restoring
from .room import room

PERIOD = 1.0  # least seconds between two looks
SHARE = 0.02  # largest share of the time that looks take
SAY = 1.0  # seconds between two reports of progress
AGAIN = 10.0  # seconds until a checkpoint that could not be drained is tried again
GRACE = 0.5  # seconds for workers to die with their agent
NICE = 10


class Stager:
    """The work of the process."""

    def __init__(
        self,
        channel: AgentChannel,
        storage: str,
        stage: str,
        pattern: str,
        exclude: tuple[str, ...],
        complete: str,
        verify: str,
    ) -> None:
        self._channel = channel
        self._storage, self._stage = os.path.abspath(storage), os.path.abspath(stage)
        self._own = os.path.dirname(self._stage)
        self._held = os.path.join(self._own, "held")  # the checkpoint that is being copied
        self._lock = stage_directory.hold(self._own)
        self._here, self._there = (
            CheckpointService(
                os.path.normpath(os.path.join(root, pattern)), exclude, complete, verify
            )
            for root in (self._stage, self._storage)
        )
        self._record = Record(os.path.join(self._own, "record"))
        self._others = OtherFiles(self._stage, self._storage, self._here, self._record)
        self._deletion = Deletion(self._stage, self._storage, self._there, self._record)
        self._requests: deque[messages.Restore | messages.Flush] = deque()
        self._rounds: RoundTimes = ()
        self._is_swept = False
        self._is_gone = False  # the agent
        self._is_hurried = False  # by the agent
        self._is_late = False  # the script deletes or rewrites what is not on storage yet
        self._is_rewritten = False  # in place
        self._is_flushing = False
        self._finishes = False  # the last drain was given up, so the next one is finished
        self._drained: dict[str, frozenset[tuple[object, ...]]] = {}  # identities, by key
        self._failed: tuple[str, object, float] = "", None, 0.0  # key, identity, when to try again
        self._sized: object = None  # the identity of the newest checkpoint, once room was checked
        self._refusal = ""
        self._look_due = self._say_due = 0.0
        self._paused = 0.0  # seconds of this drain

    @property
    def _has_pauses(self) -> bool:
        is_urgent = self._is_hurried or self._is_late or self._is_flushing or self._is_gone
        return not is_urgent and not any(isinstance(r, messages.Flush) for r in self._requests)

    def run(self) -> None:
        """Work until the agent is gone."""
        stage_directory.await_orphans(self._own, self._storage)
        with contextlib.suppress(OSError):  # storage is away: the first drain reports it
            self.sweep()
        while True:
            self._serve(max(0.0, self._look_due - time.monotonic()))
            while self._requests:
                match self._requests.popleft():
                    case messages.Restore() as request:
                        self._send(self.restore(request))
                    case messages.Flush(id=number):
                        self._send(self.flush(number))
            if self._is_gone:
                self._end()
                return
            if time.monotonic() >= self._look_due:
                self.work()

    def _end(self) -> None:
        """Drain what a dead agent has left, and remove the staging directory."""
        if os.path.isdir(self._stage):
            time.sleep(GRACE)
            left = self.flush(0)
            for path in left.missing:
                say_now(f"{path} could not be written, and is lost: {left.why}")
        rmtree(self._own)

    # Requests

    def _serve(self, seconds: float) -> None:
        """Read requests for some time; less if there is work to do or a copy becomes urgent."""
        until = time.monotonic() + seconds
        while not self._is_gone:
            left = max(0.0, until - time.monotonic())
            if not select.select([self._channel], [], [], left)[0]:
                return
            had_pauses = self._has_pauses
            try:
                for request in self._channel.read():
                    self._take(decode(messages.REQUESTS, request))
            except AgentGoneError:
                self._is_gone = True
            if self._requests or had_pauses > self._has_pauses:
                until = 0.0

    def _take(self, request: messages.Request) -> None:
        match request:
            case messages.Rounds(rounds=rounds):
                self._rounds = rounds
            case messages.Hurry(on=on):
                self._is_hurried = on
            case _:
                self._requests.append(request)

    def _send(self, reply: messages.Reply) -> None:
        if not self._is_gone:
            try:
                self._channel.send(reply.encoded())
            except AgentGoneError:
                self._is_gone = True

    def restore(self, request: messages.Restore) -> messages.Reply:
        """Copy a checkpoint from storage, with the small files of the script."""
        if why := self._lack_of_links():
            return messages.Refused(request.id, why)
        restoring = Restoring(self._storage, self._stage, self._there, self._here, self._rounds)
        reply = restoring.run(request, is_first=not self._record.moved)
        if (restored := restoring.restored) is not None:
            self._record.add(restored)
            self._record.add_copied(restoring.beside)
            if same(restored, self._storage):  # else the script has saved a newer one
                self._drained[restored.key] = restored.identity
        if isinstance(reply, messages.Restored) and not request.avoid:
            self._others.restore()
        return reply

    def _lack_of_links(self) -> str:
        """Return why no hard links can be made, which `hold` needs; "" if they can."""
        path = os.path.join(self._own, stage_directory.LOCK)
        try:
            with contextlib.suppress(FileExistsError):  # by a stager that was killed
                os.link(path, f"{path}.link")
            os.unlink(f"{path}.link")
        except OSError as e:
            return f"no hard links can be made in {self._own}: {e.strerror}"
        return ""

    # Draining

    def sweep(self) -> None:
        """Remove what a killed stager has left unfinished. Raises OSError."""

        def decisive(path: str) -> str:
            where = os.path.dirname(path)
            found = look_at(where, path, self._there.facts(()), self._there.memory)
            if found is None or found.lacks is not None:
                return ""
            return os.path.relpath(found.candidate.decides.path, path)

        rmtree(self._held)
        places = {self._own, self._storage, *roots(self._there.where)}
        self._is_swept = sweep(places, decisive, self._stage)

    def _look(self) -> list[ExaminedCheckpoint]:
        """Return the checkpoints in the staging directory, the newest first."""
        rounds, began = self._rounds, time.monotonic()
        if self._is_flushing and rounds:  # nobody writes any more, so what was written is all
            begun, _, *world = rounds[-1]
            rounds = (*rounds[:-1], (begun, time.time_ns() + 2 * SETTLED, *world))
        try:
            return list(self._here.examine(rounds))
        except OSError:
            return []
        finally:
            took = time.monotonic() - began
            self._look_due = began + max(PERIOD, took / SHARE)

    def _complete(
        self, found: Sequence[ExaminedCheckpoint]
    ) -> Iterator[tuple[ExaminedCheckpoint, Contents]]:
        """Yield the complete checkpoints. Left out are those of which another rank's file is not
        whole, and files inside of another one: they count only together.
        """
        torn = {f.candidate.path for f in found if f.lacks is not None and not f.quiet}
        drained = self._record.moved.keys() - {HERE}
        seen: set[str] = set(self._record.moved.get(HERE, ()))
        for each in found:
            name = os.path.relpath(each.candidate.path, self._stage)
            is_part = name in seen or any(str(parent) in drained for parent in Path(name).parents)
            if each.lacks is None and not is_part:
                with contextlib.suppress(OSError):  # being deleted
                    contents = contents_of(self._stage, each)
                    seen.update(contents.moved)
                    if torn.isdisjoint(os.path.join(self._stage, n) for n in contents.moved):
                        yield each, contents

    def _is_on_storage(self, contents: Contents) -> bool:
        """Return whether it was drained. In the end, look whether somebody has deleted it there."""
        is_drained = self._drained.get(contents.key) == contents.identity
        if is_drained and self._is_flushing:
            return all(os.path.lexists(os.path.join(self._storage, n)) for n in contents.moved)
        return is_drained

    def work(self) -> None:
        """Drain a checkpoint if there is a new one, and delete what is not needed any more."""
        found = self._look()
        complete = list(self._complete(found))
        self._check_room(complete)
        for each, contents in complete:
            key, identity, again = self._failed
            is_failed = (key, identity) == (contents.key, contents.identity)
            if is_failed and time.monotonic() < again:
                break
            if not self._is_on_storage(contents):
                if not self._drain(each, contents, found):
                    self._look_due = 0.0
                    with contextlib.suppress(OSError, GivenUpError):  # the flush reports it
                        self._others.drain(found, self._between(None), self._absent(found))
                break
        self._rotate()
        with contextlib.suppress(OSError):
            self._deletion.make_room([c for _, c in complete], self._is_on_storage)

    def _rotate(self) -> None:
        for key in self._deletion.rotate(self._rounds):
            self._drained.pop(key, None)
            self._send(messages.Deleted(self._on_storage(key)))

    def _absent(self, found: Sequence[ExaminedCheckpoint]) -> set[str]:
        keys = {os.path.relpath(f.candidate.path, self._stage) for f in found}
        return keys - self._drained.keys()

    def _drain(
        self, found: ExaminedCheckpoint, contents: Contents, all_found: Sequence[ExaminedCheckpoint]
    ) -> str:
        """Copy a complete checkpoint to storage. Return why that was not possible, or ""."""
        began, step = time.monotonic(), found.candidate.step
        self._paused = 0.0
        path = self._on_storage(contents.key)
        try:
            is_new = self._copy(found, contents, all_found)
        except GivenUpError as e:
            self._finishes = True
            return str(e)
        except OSError as e:
            why = e.strerror or str(e)
            is_deleted = isinstance(e, FileNotFoundError)  # by the script, just now
            if not (is_deleted and str(e.filename).startswith(self._own)):
                self._failed = contents.key, contents.identity, time.monotonic() + AGAIN
                self._is_swept = False  # the draft may be left, if storage is away
                self._send(messages.DrainFailed(path, why))
            return why
        finally:
            rmtree(self._held)
        self._drained[contents.key] = contents.identity
        self._finishes = self._is_late = False
        self._deletion.note_drained()
        if is_new:
            number = None if step is None else step.value
            seconds = time.monotonic() - began - self._paused
            self._send(messages.Drained(path, number, contents.size, seconds))
        if self._refusal:
            self._send(messages.Refused(0, self._refusal))
            self._refusal = ""
        return ""

    def _copy(
        self,
        found: ExaminedCheckpoint,
        contents: Contents,
        all_found: Sequence[ExaminedCheckpoint],
    ) -> bool:
        """Copy and publish a checkpoint. Return False if it was there already: it was restored, or
        drained by a stager that was killed. Raises OSError and GivenUpError.
        """
        if not self._is_swept:
            self.sweep()
        is_there = same(contents, self._storage)
        with draft(self._storage, self._stage) as drafted:
            candidates = [f.candidate for f in all_found]
            beside = notes(self._stage, contents.key, candidates, self._absent(all_found))
            beside = [
                each
                for each in beside
                if not self._record.has(each) and not is_copied(each, self._storage)
            ]
            # Trackers are rewritten in place, so they are copied at once.
            copy(beside, self._stage, drafted, self._stage, at_once)
            beside = [each for each in beside if is_same(each, self._stage)]
            if not is_there:
                self._hold(contents)
            self._check(found, contents)
            if not is_there:
                copy(contents.items, self._held, drafted, self._stage, self._between(contents))
                if not self._is_rewritten and not is_unchanged(contents, self._held):
                    self._is_rewritten = self._is_late = True
                    raise GivenUpError("it is being written again")
            if not is_there and contents.key != HERE:
                self._keep_others(contents)
            for name in (*contents.moved, *(each.name for each in beside)):
                make_parents(name, self._stage, self._storage)
            self._record.add(contents)  # before, so that the next stager knows it in any case
            others = [*contents.items, *beside] if contents.key == HERE else beside
            self._record.add_others({each.name for each in others})
            publish(contents, beside, drafted, self._storage, self._stage, is_there=is_there)
        self._others.note_copied(beside if is_there else others)
        return not is_there

    def _keep_others(self, contents: Contents) -> None:
        """Rename checkpoints of an earlier launch that have the names of a new one: only the newest
        was restored, so the script cannot know that the names of the others are in use.
        """
        own = {*self._record.others, *(n for names in self._record.moved.values() for n in names)}
        for name in contents.moved:
            if name not in own and os.path.lexists(path := os.path.join(self._storage, name)):
                keep(path)

    def _hold(self, contents: Contents) -> None:
        """Keep the files while they are copied, by hard links. If the script has rewritten files in
        place while the last checkpoint was copied, and there is room, by a copy in memory.
        """
        if self._is_rewritten and room(self._stage).lack(contents.size, 1):
            self._is_rewritten = False
        if self._is_rewritten:
            copy(contents.items, self._stage, self._held, self._stage, at_once)
        else:
            hold(contents.items, self._stage, self._held)

    def _check(self, found: ExaminedCheckpoint, contents: Contents) -> None:
        """Raise GivenUpError unless the checkpoint is still complete, and the same."""
        here, path = self._here, found.candidate.path
        again = look_at(here.where, path, here.facts(self._rounds), here.memory, opens=here.opens)
        is_complete = again is not None and (again.lacks is None or self._is_flushing)
        if again is None or not is_complete or self._identity(again) != contents.identity:
            raise GivenUpError("it is being written again")

    def _identity(self, found: ExaminedCheckpoint) -> object:
        return contents_of(self._stage, found).identity

    def _on_storage(self, key: str) -> str:
        return os.path.normpath(os.path.join(self._storage, key))

    def _between(self, contents: Contents | None) -> Between:
        """Return what to do between two pieces of a copy. None: of other files than checkpoints,
        which have to wait for the next checkpoint.
        """

        def between(done: int, took: float) -> int:
            now = time.monotonic()
            if contents is not None and now >= self._say_due:
                self._say_due = now + SAY
                path = self._on_storage(contents.key)
                self._send(messages.Draining(path, done, contents.size))
            self._serve(took if self._has_pauses else 0.0)
            self._paused += time.monotonic() - now
            if not self._is_flushing and time.monotonic() >= self._look_due:
                self._check_worth(contents, done)
            return 1 if self._has_pauses else THREADS

        return between

    def _check_worth(self, contents: Contents | None, done: int) -> None:
        """Raise GivenUpError if a newer checkpoint should be drained instead. At least every other
        drain is finished, however often the script saves.
        """
        complete = list(self._complete(self._look()))
        self._check_room(complete)
        newest = complete[0][1] if complete else None
        is_newest = newest is None or self._is_on_storage(newest)
        if contents is None:
            if not is_newest:
                raise GivenUpError("there is a new checkpoint")
            return
        if newest is not None and (newest.key, newest.identity) == (
            contents.key,
            contents.identity,
        ):
            return
        if not is_newest and not self._finishes and 2 * done < contents.size:
            raise GivenUpError("there is a newer checkpoint")
        is_deleted = all(
            (c.key, c.identity) != (contents.key, contents.identity) for _, c in complete
        )
        if is_deleted and room(self._stage).lack(contents.size, 1):
            self._is_late = True
            raise GivenUpError("the script has deleted it, and its memory is needed")

    # The end

    def flush(self, number: int) -> messages.Flushed:
        """Copy everything that is left, and try once more what could not be copied."""
        self._is_flushing = True
        try:
            missing, why, newest = self._flush_once()
            if missing:
                missing, why, newest = self._flush_once()
        finally:
            self._is_flushing = False
        return messages.Flushed(number, tuple(missing), why, newest)

    def _flush_once(self) -> tuple[list[str], str, str]:
        if not self._is_swept:
            with contextlib.suppress(OSError):
                self.sweep()
        missing, first, newest = [], "", ""
        found = self._look()
        complete = list(self._complete(found))
        if not os.path.isdir(self._stage):
            return [self._storage], "somebody has deleted the staging directory", ""
        failed: list[tuple[str, str]] = []
        for batch in (complete[:1], complete[1:]):  # older ones are worth less than other files
            for each, contents in batch:
                if not self._is_on_storage(contents) and (
                    why := self._drain(each, contents, found)
                ):
                    path = self._on_storage(contents.key)
                    missing.append(path)
                    first = first or why
                    newest = path if contents is complete[0][1] else newest
            failed = self._others.flush(found, self._between(None), self._absent(found))
        self._rotate()
        missing += (self._on_storage(name) for name, _ in failed)
        return missing, first or next((why for _, why in failed), ""), newest

    # Room

    def _check_room(self, complete: Sequence[tuple[ExaminedCheckpoint, Contents]]) -> None:
        """Check once for each new checkpoint that the next one will fit, if those that are on
        storage make room for it. Do this before the next save begins, which takes room itself.
        """
        if not complete or complete[0][1].identity == self._sized:
            return
        newest = complete[0][1]
        self._sized = newest.identity
        with contextlib.suppress(OSError):
            left = room(self._stage)
            older = sum(c.size for _, c in complete[1:] if c.key != HERE and self._is_on_storage(c))
            self._refusal = left._replace(free=left.free + older).lack(newest.size, 1)
            self._is_late |= bool(self._refusal)
            if self._refusal and self._is_on_storage(newest):
                self._send(messages.Refused(0, self._refusal))
                self._refusal = ""


def main(fd: str, _blocked: str, settings: str) -> None:
    channel = AgentChannel(fd)
    os.nice(NICE)  # it works while the workers compute
    with contextlib.suppress(FileNotFoundError):  # the agent has gone, and another has swept
        Stager(channel, **json.loads(settings)).run()
