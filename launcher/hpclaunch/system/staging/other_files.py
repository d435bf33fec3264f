"""The files of a script that belong to no checkpoint: logs, configurations, final models, links.

They are copied after each checkpoint, so that few of them are lost with a node. What looks like
saved tensors is copied only after the script has ended: before, somebody may be writing it.
"""

from __future__ import annotations

import contextlib
import filecmp
import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from hpclaunch.core.staging.files import StagedFile
from hpclaunch.system.checkpoints.candidates import CheckpointCandidate
from hpclaunch.system.checkpoints.finding import ExaminedCheckpoint, candidates, look_at
from hpclaunch.system.checkpoints.formats import UNKNOWN
from hpclaunch.system.checkpoints.formats.safetensors import SUFFIX
from hpclaunch.system.checkpoints.formats.torch_save import is_archive
from hpclaunch.system.checkpoints.listing import SAVED

from .contents import (
    HERE,
    NOTE,
    file_at,
    is_copied,
    is_draft,
    is_part,
    named_by,
    target_of,
    tree,
)
from .copying import (
    Between,
    GivenUpError,
    LostError,
    RewrittenError,
    at_once,
    cause,
    copy,
    make_parents,
)
from .launch import Launch
from .memory import Memory
from .publishing import draft, draft_beside, later, place

RESTORED, MOST_RESTORED = 64 << 20, 1000  # bytes and number of the files that are restored


class OtherFiles:
    """The files below both roots that belong to no checkpoint."""

    def __init__(self, launch: Launch, memory: Memory) -> None:
        self._memory = memory
        self._launch, self._storage, self._record = launch, launch.storage, launch.record
        self._copied: set[str] = set()  # by this stager
        self._opened = -1  # the staging directory: while it is open, no other gets its inode
        with contextlib.suppress(OSError):  # somebody has deleted it
            self._opened = os.open(launch.stage, os.O_PATH | os.O_CLOEXEC)
        self._run = launch.storage_thread.run

    def restore(self, meanwhile: Between) -> None:
        """Copy small files to the staging directory, since the script may append to them. Call this
        before the script runs.
        """
        names, restored = self._launch.storage_thread.run(self._restore, meanwhile=meanwhile)
        self._record.add_others(names)
        self._record.add_copied(restored)

    def _restore(self) -> tuple[set[str], list[StagedFile]]:
        """Return the names of those that were restored before, and the files that are now."""
        stage, here = self._launch.stage, self._launch.here
        restored: list[StagedFile] = []
        left, names = RESTORED, set[str]()
        with (
            contextlib.suppress(OSError),
            draft_beside(self._launch.stage) as drafted,
        ):
            where = self._storage + here.where.removeprefix(stage)
            known = [*candidates(where, here.facts(()))]
            skipped = frozenset(os.path.relpath(c.path, self._storage) for c in known)
            for each in self._below(self._storage, skipped):
                if os.path.lexists(os.path.join(stage, each.name)):
                    if each.size <= NOTE:  # restored beside the checkpoint
                        names.add(each.name)
                    continue
                if not each.is_file or each.size > left:
                    continue
                with contextlib.suppress(OSError):  # unreadable: it stays as it is on storage
                    copy([each], self._storage, drafted, at_once)
                    place(os.path.join(drafted, each.name), os.path.join(stage, each.name))
                    left -= each.size
                    restored.append(file_at(stage, each.name))
                if len(names) + len(restored) >= MOST_RESTORED:
                    break
        return names, restored

    def small(self, found: Sequence[ExaminedCheckpoint]) -> list[StagedFile]:
        """Return the small files beside the checkpoints, since the script may append to them."""
        left = RESTORED
        items: list[StagedFile] = []
        for each in self._beside(found, {self._key(f) for f in found}):
            if each.is_file and each.size <= left and len(items) < MOST_RESTORED:
                left -= each.size
                items.append(each)
        return items

    def note_copied(self, items: Sequence[StagedFile]) -> None:
        """Note that these have reached storage as they are."""
        self._record.add_copied(items)
        self._copied.update(each.name for each in items)

    def drain(
        self, found: Sequence[ExaminedCheckpoint], between: Between, absent: Collection[str]
    ) -> list[tuple[str, str]]:
        """Copy what has changed while the script runs. Return the path and the reason of each that
        storage has not taken. Raises what `between` raises.

        A directory that is newer than the last checkpoint waits for the next one: it may be a
        checkpoint that is just being saved, and look like one only later.
        """
        skipped = {self._key(f) for f in found}
        saved = max((f.candidate.time for f in found if self._key(f) not in absent), default=0)
        facts = self._launch.seen.facts(())
        items = [
            each
            for each in self._beside(found, skipped)
            if not each.name.endswith(SAVED)
            and not facts.seals(each.name)  # it may be new, and what it seals is not copied here
            and not facts.excludes(
                os.path.basename(each.name), os.path.join(self._launch.root, each.name)
            )
        ]
        new = {f for f in {os.path.dirname(i.name) for i in items} if self._is_new(f, saved)}
        items = [each for each in items if os.path.dirname(each.name) not in new]
        failed = self._copy(items, found, between, absent)
        return [(name, cause(e)) for name, e in failed if isinstance(e, OSError)]

    def _is_new(self, folder: str, saved: int) -> bool:
        """Return whether a directory is new since a save, and so may become a checkpoint."""
        if self._run(os.path.isdir, os.path.join(self._storage, folder)):
            return False
        with contextlib.suppress(FileNotFoundError):
            inside = os.listdir(os.path.join(self._launch.root, folder))
            names = (folder, *(os.path.join(folder, name) for name in inside))
            return all(file_at(self._launch.root, name).time >= saved for name in names)
        return True  # it is being deleted

    def flush(
        self, found: Sequence[ExaminedCheckpoint], between: Between, absent: Collection[str]
    ) -> list[tuple[str, str]]:
        """Copy what has changed, except checkpoints: those that are complete were copied before,
        and those that a kill has left half written stay behind. Call this once no worker runs.
        What was copied before is compared: writing through a mapping (mmap) changes no time. Return
        the path and the reason of each that could not be copied.
        """
        try:
            skipped = {self._key(f) for f in found if f.lacks is None or self._is_half(f)}
            items = self._beside(found, skipped)
        except OSError as e:
            return [(os.path.relpath(e.filename, self._launch.root), cause(e))]
        changed = {each.name for each in items if self._is_changed(each)}
        return [(name, cause(e)) for name, e in self._copy(items, found, between, absent, changed)]

    def delete(self) -> None:
        """Delete on storage what this stager has copied there and the script has deleted, but not
        what somebody else has written. Call this after `flush`.

        Do nothing unless storage has all that is in memory: what the script has deleted may be in
        another file now, which it has renamed or written.
        """
        launch, others = self._launch, self._record.others
        if launch.has_several_nodes:
            return  # a node with the files may have been lost
        parts = {name for names in self._record.moved.values() for name in names}
        deleted = [
            name
            for name in self._copied
            if others.get(name)
            and not os.path.lexists(os.path.join(launch.root, name))
            and not is_part(name, parts)
        ]
        if not deleted or not self._run(self._has_all):
            return
        gone = [name for name in deleted if self._run(self._delete, name)]
        self._record.forget_others(gone)
        self._copied.difference_update(gone)

    def _has_all(self) -> bool:
        """Return whether storage has all files that are in memory, also those with names of
        unfinished ones. It has not if the script, or the end of a login session (RemoveIPC), has
        removed or renamed the staging directory, even if there is a new one.
        """
        root = self._launch.root
        with contextlib.suppress(OSError):
            return (
                os.path.samestat(os.fstat(self._opened), os.stat(root))
                and not any(map(is_draft, os.listdir(root)))
                and all(each.is_folder or self._has(each) for each in tree(root, HERE))
            )
        return False

    def _has(self, each: StagedFile) -> bool:
        there = file_at(self._storage, each.name)
        if each.is_link:
            return there.is_link and there.target == each.target
        return there.is_file and there.identity == each.identity

    def _delete(self, name: str) -> bool:
        """Delete a file on storage, and directories that are empty then and that the script has
        deleted. Return False if that fails.
        """
        _, size, time = self._record.others[name]
        try:
            there = file_at(self._storage, name)
            if there.size == size and (there.is_link or there.time == time):
                os.unlink(os.path.join(self._storage, name))
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError:
            return False
        with contextlib.suppress(OSError):  # not empty
            for folder in map(str, Path(name).parents[:-1]):
                if not os.path.lexists(os.path.join(self._launch.root, folder)):
                    os.rmdir(os.path.join(self._storage, folder))
        return True

    def _is_changed(self, each: StagedFile) -> bool:
        """Return whether somebody has deleted a copy on storage, or a copy with the size and the
        time of its original has other bytes.
        """
        if each.name not in self._copied:
            return False
        if not self._run(os.path.lexists, os.path.join(self._storage, each.name)):
            return True
        if not self._run(is_copied, each, self._storage):
            return False
        if not self._memory.is_here(each):
            return True  # comparing would take as long as copying
        stage, storage = (
            os.path.join(root, each.name) for root in (self._launch.root, self._storage)
        )
        try:
            return not self._run(lambda: filecmp.cmp(stage, storage, shallow=False))
        except OSError:  # storage fails: copying the file again says why
            return True

    def _below(self, root: str, skipped: frozenset[str]) -> Iterator[StagedFile]:
        for each in tree(root, HERE, skipped - {HERE}):
            if not each.is_folder and not any(map(is_draft, each.name.split(os.sep))):
                yield each

    def _beside(
        self, found: Sequence[ExaminedCheckpoint], skipped: Collection[str]
    ) -> list[StagedFile]:
        """Return the files that belong to no checkpoint, also not to one that lies directly in the
        root. While that one is incomplete, what looks like saved tensors is left out, too, so that
        storage keeps all files of the one before.
        """
        moved = (names for key, names in self._record.moved.items() if key != HERE)
        # A drained checkpoint stays as it is on storage, even if it is incomplete in memory now.
        drained = {name for names in moved for name in names}
        drained -= {self._key(f) for f in found if f.quiet}
        items = self._below(self._launch.root, frozenset({*skipped, *drained}))
        root = next((f for f in found if self._key(f) == HERE), None)
        if root is not None and root.quiet:  # an exported model beside checkpoints
            return list(items)
        names = set(self._record.moved.get(HERE, ()))
        if root is not None:
            paths = (root.candidate.decides.path, *(part.entry.path for part in root.parts))
            names.update(os.path.relpath(path, self._launch.root) for path in paths)
        is_half = bool(names) and (root is None or root.lacks is not None)
        saved = SAVED if is_half else ()
        return [each for each in items if each.name not in names and not each.name.endswith(saved)]

    def _key(self, found: ExaminedCheckpoint) -> str:
        return self._key_of(found.candidate)

    def _key_of(self, candidate: CheckpointCandidate) -> str:
        return os.path.relpath(candidate.path, self._launch.root)

    def _is_half(self, found: ExaminedCheckpoint) -> bool:
        """Return whether a checkpoint that lacks something is one that was not saved to its end. It
        may also be something else that only looks like a checkpoint.
        """
        candidate, lacks = found.candidate, found.lacks
        if candidate.export or candidate.format is UNKNOWN:
            return False
        if found.quiet:  # the search has not examined it
            again = look_at(
                self._launch.seen.where,
                candidate.path,
                self._launch.seen.facts(()),
                self._launch.seen.cache,
            )
            lacks = again.lacks if again else None
        entry = candidate.place.entry
        if lacks is None or entry.is_folder or not entry.size or entry.name.endswith(SUFFIX):
            return lacks is not None
        try:
            return is_archive(entry.path, entry.identity)
        except OSError:  # deleted, or unreadable: then copying it says why
            return False

    def _copy(
        self,
        items: Sequence[StagedFile],
        found: Sequence[ExaminedCheckpoint],
        between: Between,
        absent: Collection[str],
        changed: Collection[str] = (),
    ) -> list[tuple[str, OSError | GivenUpError]]:
        """Copy items that are new, or `changed` without another time. Return what has failed."""
        missing = [f.candidate for f in found if self._key(f) in absent]
        new = [i for i in items if i.name in changed or not self._record.has(i)]
        failed: list[tuple[str, OSError | GivenUpError]] = []
        copied: list[StagedFile] = []
        if not new:
            return failed
        try:
            with draft(self._storage, self._launch.name, self._run) as drafted:
                # A tracker lies above the files of the directory that it names.
                for each in sorted(new, key=lambda e: (e.is_link, -e.name.count(os.sep))):
                    try:
                        if self._copy_one(each, drafted, between, missing, changed):
                            copied.append(each)
                    except (LostError, RewrittenError) as e:  # of another node
                        failed.append((each.name, e))
                    except OSError as e:
                        if os.path.lexists(os.path.join(self._launch.root, each.name)):
                            failed.append((each.name, e))
                        with contextlib.suppress(OSError):  # full storage may have room for others
                            self._run(os.unlink, os.path.join(drafted, each.name))
        except OSError as e:  # no draft can be made
            failed = [(each.name, e) for each in new]
        finally:
            self.note_copied(copied)
        return failed

    def _copy_one(
        self,
        each: StagedFile,
        drafted: str,
        between: Between,
        missing: Sequence[CheckpointCandidate],
        changed: Collection[str],
    ) -> bool:
        """Copy a file. Return whether it is on storage now: a link has to wait for its target, and
        a tracker for the checkpoint that it names.
        """
        path, final = (os.path.join(root, each.name) for root in (self._launch.root, self._storage))
        if each.is_link:
            target = target_of(self._launch.root, each.name)
            is_inside = not target.startswith(os.pardir)
            if is_inside and not self._run(os.path.lexists, os.path.join(self._storage, target)):
                return False
        elif not each.is_file:
            return False  # a socket, for example
        elif each.size <= NOTE:
            # A file in a directory is a part of it, and no tracker, even if it has only its step.
            others = (c for c in missing if not each.name.startswith(self._key_of(c) + os.sep))
            if not all(map(self._has_directory, named_by(path, others))):
                return False
        if each.name not in changed and self._run(is_copied, each, self._storage):
            return True
        if self._is_newer_there(each):
            return False
        if not self._is_own(each.name):
            self._run(set_aside, final)
        self._memory.copy([each], self._launch.root, drafted, between)
        self._run(make_parents, each.name, self._launch.root, self._storage)
        self._run(place, os.path.join(drafted, each.name), final)
        return True

    def _has_directory(self, candidate: CheckpointCandidate) -> bool:
        """Return whether storage has all files of a directory, since each was copied by itself.
        Raises OSError.
        """
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # there, or deleted here
            below = tree(self._launch.root, self._key_of(candidate))
            files = [each for each in below if not each.is_folder]
            return self._run(lambda: all(map(self._has, files)))
        return False

    def _is_newer_there(self, each: StagedFile) -> bool:
        """Return whether storage has a later file that is not of this launch, or that another node
        has written since the last restore: the job may have continued without a node that was cut
        off from it, or the other node may be lost.
        """
        with contextlib.suppress(OSError):
            if (there := self._run(later, each, self._storage)) is not None:
                known = self._record.others.get(each.name, ())
                return known[1:] != there.identity or self._memory.is_old(each)
        return False

    def _is_own(self, name: str) -> bool:
        """Return whether a file on storage may be replaced: it was written by this launch, or
        restored, or is a model, which a script replaces as a whole.
        """
        return name in self._record.others or name.endswith(SAVED)


def set_aside(path: str) -> None:
    """Rename what an earlier launch has saved and this one has not restored, if there is something,
    so that no checkpoint and no line of a log is lost.
    """
    if not os.path.lexists(path):
        return
    number = 1
    while os.path.lexists(kept := f"{path}.~{number}~"):
        number += 1
    if not os.path.islink(path):
        os.rename(path, kept)
