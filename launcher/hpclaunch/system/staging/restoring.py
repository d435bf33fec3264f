"""The copy of the newest complete checkpoint from storage into the staging directory, and of those
that scripts look for by a fixed name.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial

from hpclaunch.core.protocol.wording import size as written
from hpclaunch.core.staging.files import StagedFile
from hpclaunch.system.checkpoints.candidates import CheckpointCandidate, step_of
from hpclaunch.system.checkpoints.finding import ExaminedCheckpoint, look_at
from hpclaunch.system.checkpoints.messages import RoundTimes

from .contents import HERE, Contents, contents_of, file_at, names_any, notes
from .copying import at_once, copy, reason
from .draining import Draining
from .launch import Launch
from .messages import Refused, Restore, Restored
from .other_files import OtherFiles
from .publishing import draft_beside, later, place
from .requests import Requests
from .room import room
from .stage_directory import LOCK, rmtree

FULL = {errno.ENOSPC, errno.EDQUOT, errno.ENOMEM}


def restore(
    launch: Launch, requests: Requests, draining: Draining, others: OtherFiles, request: Restore
) -> tuple[Restored | Refused, list[Contents]]:
    """Copy checkpoints from storage, with the small files of the script. Return also what the
    staging directory has of them, the newest first.
    """
    if why := _lack_of_links(launch):
        return Refused(request.id, why), []
    restoring = _Restoring(launch, requests.rounds)
    reply = launch.storage_thread.run(restoring.run, request, meanwhile=requests.meanwhile)
    _note(restoring, launch, requests, draining)
    if isinstance(reply, Restored) and not request.avoid:
        others.restore(requests.meanwhile)
    return reply, restoring.restored


def restore_older(
    launch: Launch,
    requests: Requests,
    draining: Draining,
    examined: Sequence[ExaminedCheckpoint],
    size: int,
) -> list[Contents]:
    """Copy these from storage, as far as there is room, also for the next save of `size` bytes.
    Return what the staging directory has of them.
    """
    restoring = _Restoring(launch, requests.rounds)
    fetched = restoring.fetch_by_name(iter(examined), size, ())
    launch.storage_thread.run(list, fetched, meanwhile=requests.meanwhile)
    _note(restoring, launch, requests, draining)
    return restoring.restored


def _note(restoring: _Restoring, launch: Launch, requests: Requests, draining: Draining) -> None:
    """Note that storage has what was restored."""
    for restored in restoring.restored:
        launch.record.add(restored)
        # It is not the same if the script has saved a newer one meanwhile.
        run = partial(launch.storage_thread.run, meanwhile=requests.meanwhile)
        if run(restored.is_copied, launch.storage):
            draining.note_drained(restored)
    launch.record.add_copied(restoring.beside.values())


def _lack_of_links(launch: Launch) -> str:
    """Return why no hard links can be made from one directory to another, which `hold` needs; "" if
    they can.
    """
    try:
        with draft_beside(launch.stage) as drafted:
            os.link(os.path.join(launch.own, LOCK), os.path.join(drafted, LOCK))
    except OSError as e:
        return f"no hard links can be made in {launch.own}: {e.strerror}"
    return ""


def _lack_of_permission(storage: str) -> str:
    """Return why nothing can be saved on storage, however long the job runs; "" if it can be."""
    path = storage
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    if os.access(path, os.W_OK | os.X_OK):
        return ""
    return f"{path} is read-only, or this user may not write to it"


def fixed_names(*known: str) -> Callable[[str], bool]:
    """Return a function that returns whether a script may look for the checkpoint at this path by a
    fixed name: one without a step. Call that for the newest checkpoint first: of several names that
    differ only in numbers (`model_1.pth`), also from those that are `known`, it is true for the
    first.
    """

    def form(path: str) -> str:
        return re.sub(r"\d+", "0", path)

    forms = set(map(form, known))

    def is_fixed_name(path: str) -> bool:
        is_new = form(path) not in forms
        forms.add(form(path))
        return is_new and step_of(os.path.basename(path)) is None

    return is_fixed_name


class _Restoring:
    """One request. `restored` are the checkpoints that were copied, with their trackers, the newest
    first, and `beside` the files beside them, by name, as they are in the staging directory.
    """

    def __init__(self, launch: Launch, rounds: RoundTimes) -> None:
        self._launch, self._rounds = launch, rounds
        self._is_first = not launch.record.moved  # no checkpoint of this launch is in memory
        self._storage, self._stage = launch.storage, launch.stage
        self._there, self._here = launch.there, launch.here
        self.restored: list[Contents] = []
        self.beside: dict[str, StagedFile] = {}
        self._is_fixed_name = fixed_names()

    def run(self, request: Restore) -> Restored | Refused:
        """Copy the newest checkpoint that is complete on storage. If its copy cannot be used, copy
        the next older one.
        """
        began = time.monotonic()
        skipped: list[str] = []
        if self._is_first and (why := _lack_of_permission(self._storage)):
            return Refused(request.id, why)
        try:
            examined = self._there.examine(self._rounds, self._is_wanted)
            for found in examined:
                candidate = found.candidate
                if candidate.path in request.avoid:
                    continue
                if found.lacks is not None:
                    skipped += [] if found.quiet else [f"{candidate.name}: {found.lacks}"]
                    continue
                try:
                    contents = contents_of(self._storage, found)
                except FileNotFoundError:  # just deleted by another program
                    continue
                is_here = self._is_here(contents)
                generations = 2 if self._is_first and not is_here else 1
                if lack := room(self._stage).lack(found.size, generations):
                    return Refused(request.id, lack)
                if wrong := self._fetch(contents, is_here=is_here):
                    skipped.append(f"{candidate.name}: {wrong}")
                    continue
                seconds = time.monotonic() - began
                restored = candidate.path, found.size, seconds, tuple(skipped)
                by_name = tuple(self.fetch_by_name(examined, found.size, request.avoid))
                return Restored(request.id, *restored, by_name=by_name)
            if self._is_first and skipped:  # the script may be able to read it from storage
                return Refused(request.id, f"nothing in {self._storage} can be used: {skipped[0]}")
            if self._is_first and (lack := room(self._stage).lack_of_any()):
                return Refused(request.id, lack)
        except OSError as e:
            free = ""
            with contextlib.suppress(OSError):
                free = f"; {written(room(self._stage).free)} are free in {self._stage}"
            return Refused(request.id, reason(e) + free)
        return Restored(request.id, "", 0, time.monotonic() - began, tuple(skipped))

    def _is_wanted(self, candidate: CheckpointCandidate) -> bool:
        """Return whether a checkpoint is to be copied if it is complete."""
        return self._is_fixed_name(candidate.path) or not self.restored

    def fetch_by_name(
        self, examined: Iterator[ExaminedCheckpoint], size: int, avoid: Collection[str]
    ) -> Iterator[str]:
        """Copy those of the others that are complete, as long as there is room, also for the next
        save of `size` bytes. Yield the paths.
        """
        for found in examined:
            path = found.candidate.path
            with contextlib.suppress(OSError):  # the newest is there, which is enough
                if found.lacks is not None or path in avoid:
                    continue
                contents = contents_of(self._storage, found)
                is_here = self._is_here(contents)
                if contents.key == HERE or (
                    not is_here and room(self._stage).lack(size + found.size, 1)
                ):
                    continue
                if not self._fetch(contents, is_here=is_here):
                    yield path

    def _staged(self, path: str) -> ExaminedCheckpoint | None:
        """Return the checkpoint in the staging directory that has this path on storage."""
        here = self._here
        staged = os.path.normpath(os.path.join(self._stage, os.path.relpath(path, self._storage)))
        return look_at(here.where, staged, here.facts(self._rounds), here.cache, opens=here.opens)

    def _is_here(self, contents: Contents) -> bool:
        """Return whether the staging directory has a complete checkpoint of this name: copied by a
        stager that was killed afterwards, or a newer one, saved by the script. With several nodes,
        only the same one counts: another one is older, or has files of several saves.
        """
        if self._launch.has_several_nodes:
            return contents.is_copied(self._stage)
        are_there = all(os.path.lexists(os.path.join(self._stage, n)) for n in contents.moved)
        staged = self._staged(contents.found.candidate.path) if are_there else None
        return staged is not None and staged.lacks is None

    def _fetch(self, contents: Contents, *, is_here: bool) -> str:
        """Copy a checkpoint. Return what is wrong with it, or "". Raises OSError if it does not fit
        in memory.
        """
        try:
            self._copy(contents, is_here=is_here)
            return self._verify(contents)
        except OSError as e:
            if e.errno in FULL:
                raise
            return f"unreadable ({e.strerror or e})"

    def _copy(self, contents: Contents, *, is_here: bool) -> None:
        beside = [
            each
            for each in notes(self._storage, contents.key, contents.found.candidate.beside, ())
            if each.name not in self.beside and not self._stays(each)
        ]
        items = [*(() if is_here else contents.items), *beside]
        with draft_beside(self._launch.stage) as drafted:
            copy(items, self._storage, drafted, at_once)
            if not contents.is_unchanged(self._storage):
                raise OSError(errno.ESTALE, "it is being written")
            names = () if is_here else contents.moved
            if contents.key == HERE:
                names = tuple(each.name for each in items if not each.is_folder)
            for name in (*names, *(each.name for each in beside)):
                place(os.path.join(drafted, name), os.path.join(self._stage, name))
        self.beside |= {each.name: file_at(self._stage, each.name) for each in beside}

    def _stays(self, each: StagedFile) -> bool:
        """Return whether a file in memory is newer than this one on storage. With one node, each
        is. With several, one in memory may be an older tracker, of an earlier restore.
        """
        if self._launch.has_several_nodes:
            return each.is_file and later(each, self._stage) is not None
        return os.path.lexists(os.path.join(self._stage, each.name))

    def _verify(self, contents: Contents) -> str:
        """Search and read the copy, as the agent would do with the original. Remove it if it is
        damaged.
        """
        if (copied := self._staged(contents.found.candidate.path)) is None:
            return "the copy in memory is no checkpoint"
        if not (wrong := copied.lacks or self._here.read(copied).wrong):
            restored = contents_of(self._stage, copied)
            trackers = (each for each in self.beside.values() if self._tracks(each, copied))
            self.restored.append(replace(restored, items=(*trackers, *restored.items)))
            return ""
        for name in contents.essential if contents.key == HERE else contents.moved:
            path = os.path.join(self._stage, name)
            rmtree(path)
            with contextlib.suppress(OSError):
                os.unlink(path)
        return wrong

    def _tracks(self, each: StagedFile, found: ExaminedCheckpoint) -> bool:
        return each.is_link or names_any(os.path.join(self._stage, each.name), [found.candidate])
