"""The stager: the process that copies checkpoints between the staging directory and storage.

It looks into the staging directory once a second, and copies ("drains") the newest complete
checkpoint that is not on storage yet. It serves requests (`messages.py`) also between two pieces of
a copy. If its agent dies without having closed its client, it drains what is left, removes the
staging directory, and ends. With one node, it needs the standard library only.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import threading
import time
from collections.abc import Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, get_args

from hpclaunch.system.checkpoints.finding import ExaminedCheckpoint
from hpclaunch.system.checkpoints.formats import UNKNOWN
from hpclaunch.system.checkpoints.listing import saved_in
from hpclaunch.system.checkpoints.messages import FoundCheckpoint
from hpclaunch.system.checkpoints.service import seen
from hpclaunch.system.shared.helper import say_now
from hpclaunch.worker.json_lines import AgentChannel

from . import messages
from .copying import GivenUpError, reason
from .deletion import Deletion
from .draining import Draining
from .guard import Guard
from .launch import Launch
from .looking import PERIOD, Looking
from .memory import Memory
from .other_files import OtherFiles
from .publishing import sweep
from .requests import Pending, Requests
from .restoring import restore
from .stage_directory import await_orphans, is_deleted, lock_shared, rmtree

if TYPE_CHECKING:
    from hpclaunch.core.staging.generations import Manifest

    from .gathering import Gathering

AFTER_RESTORE = 3.0  # seconds in which no copy begins: workers load the checkpoint
GRACE = 0.5  # seconds for workers to die with their agent
MIXED = "a file of it is of another save, or was lost with a node"
NICE = 10
DELETED_PERIOD = 0.2  # seconds between two checks whether the staging directory was deleted
STORAGE_PERIOD = 10.0  # seconds between two looks for saves that no drain would find


class Stager:
    """The work of the process."""

    def __init__(self, channel: AgentChannel, launch: Launch) -> None:
        self._launch = launch
        self._lock = lock_shared(launch.own)
        self.requests = requests = Requests(channel)
        self.memory = memory = _memory(launch, requests)
        self.looking = looking = Looking(launch, requests, memory)
        self.others, self.deletion = OtherFiles(launch, memory), Deletion(launch, memory)
        self._others_fail = ""  # why a file that belongs to no checkpoint could not be copied
        self._storage_due = 0.0  # when to look for saves that no drain would find; inf: no longer
        self._unsealed: dict[str, tuple[int, list[str]]] = {}  # see `_unknown`
        answer = self._answer_during_a_drain
        self.draining = draining = Draining(
            launch, requests, memory, looking, self.others, self.deletion, answer
        )
        self._gathering: Gathering | None = None  # with several nodes
        if launch.has_several_nodes:
            from .gathering import Gathering  # it needs libraries

            self._gathering = Gathering(launch, memory, looking, draining, self.others, requests)
        sweep({launch.own}, lambda _: "", os.path.basename(launch.own))

    def run(self) -> None:
        """Work until the agent is gone."""
        await_orphans(self._launch.own, self._launch.storage)
        if self.memory.leads:
            with contextlib.suppress(OSError):  # storage is away: the first drain reports it
                self.draining.sweep()
        requests = self.requests
        while True:
            # Some may have come during a look.
            idle = 0.0 if requests.pending else max(0.0, self.looking.due - time.monotonic())
            requests.serve(idle)
            self._answer()
            if requests.is_gone:
                self._end()
                return
            if time.monotonic() >= self.looking.due:
                if self.memory.leads:
                    self.work()
                else:
                    self.looking.due = time.monotonic() + PERIOD

    def _answer_during_a_drain(self) -> None:
        """Answer requests for which a round of several nodes waits. A restore waits for the end of
        a flush, which would take what workers save next for what is left of the last round.
        """
        if self._gathering is not None:
            restore = () if self.looking.has_ended else (messages.Restore,)
            self._answer((messages.Search, *restore))

    def _answer(self, kinds: tuple[type[Pending], ...] = get_args(Pending)) -> None:
        """Answer the pending requests of these kinds."""
        pending, send = self.requests.pending, self.requests.send
        while (request := next((p for p in pending if isinstance(p, kinds)), None)) is not None:
            pending.remove(request)
            reply: messages.Reply
            match request:
                case messages.Restore():
                    reply = self.restore(request)
                    self.looking.due = 0.0  # before the script deletes what is there now
                case messages.Search(id=number):
                    reply = self.search(number)
                case messages.Flush(id=number):
                    reply = self.flush(number)
            self._end_if_deleted()  # else it would be taken for what the script has saved
            send(reply)
            if isinstance(reply, messages.Restored) and reply.size:
                self.memory.copies_at = time.monotonic() + AFTER_RESTORE

    def _end(self) -> None:
        """Drain what a dead agent has left, and remove the staging directory, unless another
        program has done so: another launch may have made it again.
        """
        if is_deleted(self._lock):
            return
        if self.memory.leads and os.path.isdir(self._launch.stage):
            time.sleep(GRACE)
            self.memory.await_workers()
            left = self.flush(0)
            # If another stager leads, it copies what is missing.
            for path in left.missing + left.unusable if self.memory.leads else ():
                say_now(f"{path} could not be written, and is lost: {left.why}")
        rmtree(self._launch.own)

    def restore(self, request: messages.Restore) -> messages.Reply:
        """Copy a checkpoint into the staging directory, with the small files of the script."""
        if self._gathering is not None:
            return self._gathering.run(request)
        return restore(self._launch, self.requests, self.draining, self.others, request)[0]

    def search(self, number: int) -> messages.Searched:
        """Find the newest complete checkpoint in memory, once all nodes answer."""
        try:
            self.memory.refresh_soon()
            found = self.looking.found()
        except (OSError, GivenUpError) as e:
            return messages.Searched(number, (), reason(e))
        whole = {each.found.candidate.path for each in self.looking.complete(found)}
        shown: list[FoundCheckpoint] = []
        for each in found:
            is_whole = each.candidate.path in whole
            lacks = None if is_whole else each.lacks or MIXED
            shown.append(self._as_stored(each._replace(lacks=lacks)))
            if is_whole:
                break
        return messages.Searched(number, tuple(shown))

    def _as_stored(self, examined: ExaminedCheckpoint) -> FoundCheckpoint:
        """Return the description of a checkpoint with its path on storage."""
        found = seen(examined)
        path = self._launch.on_storage(os.path.relpath(found.path, self._launch.root))
        return found.replaced(path=path, identity=path + found.identity.removeprefix(found.path))

    def work(self) -> None:
        """Drain a checkpoint if there is a new one, and delete what is not needed any more."""
        draining = self.draining
        if (found := self.looking.look()) is None:
            return
        complete = draining.consider(found)
        for contents in complete:
            if self.memory.is_quiet or draining.is_waiting(contents):
                break
            if not draining.is_on_storage(contents):
                self._storage_due = math.inf  # the script saves in memory
                if not draining.drain(contents, found):
                    self.looking.due = 0.0
                    with contextlib.suppress(OSError, GivenUpError):  # the flush reports it
                        between = draining.between(None)
                        self._report(self.others.drain(found, between, draining.absent(found)))
                break
        if time.monotonic() >= self._storage_due:
            self._look_for_other_saves(found)
        self._rotate()
        self.deletion.make_room(complete, draining.is_on_storage)
        self.memory.share()

    def _look_for_other_saves(self, found: Sequence[ExaminedCheckpoint]) -> None:
        """Report it once if the script has saved on storage, or in memory in no known format.

        Until then, no checkpoint that can be drained was in memory.
        """
        launch, rounds = self._launch, self.requests.rounds
        begun = rounds[0][0] if rounds else None
        if begun is None:
            return
        self._storage_due = time.monotonic() + STORAGE_PERIOD
        if name := _unknown(found, rounds[-1][0] or begun, self._unsealed):
            self.requests.send(messages.UnknownSave(name))
            self._storage_due = math.inf
            return
        with contextlib.suppress(OSError, GivenUpError):
            newest = launch.storage_thread.run(launch.newest_on_storage, (), rounds)
            # An earlier stager may have copied what this record lacks, if it was cut off, or if its
            # directory was deleted.
            since = max(begun, self.memory.led_since, os.fstat(self._lock).st_mtime_ns)
            if newest is not None and newest.time > max(launch.record.newest, since):
                self.requests.send(messages.DirectSave(newest.name))
                self._storage_due = math.inf

    def _report(self, failed: Sequence[tuple[str, str]]) -> None:
        """Report one of the files that could not be copied, unless the reason was reported."""
        name, why = failed[0] if failed else ("", "")
        if why and why != self._others_fail:
            self.requests.send(messages.OtherFailed(self._launch.on_storage(name), why))
        self._others_fail = why

    def _rotate(self) -> None:
        """Delete on storage what the script has deleted, if it is not needed any more."""
        drains, rounds = self.draining.number, self.requests.rounds
        self.draining.forget(self.deletion.rotate(rounds, drains, self._waiting))

    def _waiting(self) -> set[int]:
        """Return the times of the complete checkpoints in memory that are not on storage yet."""
        complete = self.looking.candidates(self.looking.found())
        return {each.time for each in complete if not self.draining.is_on_storage(each)}

    # The end

    def watch_directory(self) -> None:
        """End this process once another program has deleted the staging directory."""
        while True:
            self._end_if_deleted()
            time.sleep(DELETED_PERIOD)

    def _end_if_deleted(self) -> None:
        # Without its agent, this process may be deleting the directory itself.
        if is_deleted(self._lock) and not self.requests.is_gone:
            self.requests.send(messages.DirectoryDeleted())
            os._exit(0)

    def flush(self, number: int) -> messages.Flushed:
        """Copy everything that is left, and try once more what could not be copied."""
        self.looking.has_ended = True
        damaged: dict[Manifest, str] = {}
        try:
            flushed = self._flush_once(number, damaged)
            if flushed.missing or flushed.unusable:
                flushed = self._flush_once(number, damaged)
            return flushed
        except GivenUpError as e:  # a node does not answer; a half checkpoint must not be copied
            return messages.Flushed(number, (self._launch.storage,), str(e))
        finally:
            self.looking.has_ended = False

    def _flush_once(self, number: int, damaged: dict[Manifest, str]) -> messages.Flushed:
        """Copy what is left. `damaged` has the checkpoints of which a copy has changed in memory,
        and says where; what this attempt finds is added. Raises GivenUpError if the memory of all
        nodes cannot be looked at.
        """
        draining, on_storage = self.draining, self._launch.on_storage
        with contextlib.suppress(OSError):
            draining.sweep()
        missing: list[str] = []
        first = newest = ""
        if not os.path.isdir(self._launch.stage):
            why = "somebody has deleted the staging directory"
            return messages.Flushed(number, (), why, unusable=(self._launch.storage,))
        try:
            if self._gathering is not None:
                missing, first = self._gathering.collect(damaged)
            self.memory.refresh_soon()
            found = self.looking.found()
        except (OSError, GivenUpError) as e:
            raise GivenUpError(reason(e)) from e
        every = list(self.looking.candidates(found))
        complete = self.memory.whole(every)
        self.memory.delete_rest(complete)
        keys = {contents.key for contents in complete}
        newer = takewhile(lambda key: key not in keys, (contents.key for contents in every))
        unusable = {on_storage(key): MIXED for key in newer}
        failed: list[tuple[str, str]] = []
        for batch in (complete[:1], complete[1:]):  # older ones are worth less than other files
            for contents in batch:
                if not draining.is_on_storage(contents) and (
                    why := draining.drain(contents, found)
                ):
                    path = on_storage(contents.key)
                    missing.append(path)
                    first = first or why
                    newest = path if contents is complete[0] else newest
            failed = self.others.flush(found, draining.between(None), draining.absent(found))
        self.others.delete()
        self._rotate()
        self.memory.share()
        missing += (on_storage(name) for name, _ in failed)
        stored = self._launch.record.newest
        unusable |= {on_storage(m.key): why for m, why in damaged.items() if m.time > stored}
        first = first or next((why for _, why in failed), next(iter(unusable.values()), ""))
        return messages.Flushed(number, tuple(missing), first, newest, tuple(unusable))


def _unknown(
    found: Sequence[ExaminedCheckpoint], since: int, unsealed: dict[str, tuple[int, list[str]]]
) -> str:
    """Return the name of a directory in which the script has saved since then (ns), in no known
    format, files with the same names as in another one before; "" if there is none. The first of
    several may lack its seal only because it is being saved.

    `unsealed` keeps `since` and the names of each path, since a script that keeps only its newest
    save never has two at once.
    """
    if any(each.lacks is None for each in found):
        unsealed.clear()
    for candidate in (each.candidate for each in reversed(found)):
        if candidate.format is UNKNOWN and candidate.time > since:
            unsealed.pop(candidate.path, None)
            saved = since, sorted(saved_in(candidate.folder))
            if saved in unsealed.values():
                return candidate.name
            unsealed[candidate.path] = saved
    return ""


def _memory(launch: Launch, requests: Requests) -> Memory:
    if not launch.has_several_nodes:
        return Memory(launch)
    from .nodes import Nodes  # it needs libraries

    return Nodes(launch, requests)


def main(fd: str, _blocked: str, settings: str) -> None:
    channel = AgentChannel(fd)
    launch = Launch(messages.Settings(**json.loads(settings)))
    try:
        stager = Stager(channel, launch)
    except FileNotFoundError:  # the agent has gone, and another launch has removed the directory
        return
    Guard(launch.stage, stager.requests.send).start()
    threading.Thread(target=stager.watch_directory, daemon=True).start()
    os.nice(NICE)  # it works while the workers compute; the guard must not wait for them
    stager.run()
    if launch.has_several_nodes:
        os._exit(0)  # a thread may still copy for another node, onto storage that stalls
