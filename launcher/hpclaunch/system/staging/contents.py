"""The files, links and directories that belong to a checkpoint, by their paths relative to the
root: the staging directory, or the directory on storage.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from hpclaunch.core.staging.files import StagedFile
from hpclaunch.system.checkpoints.candidates import DRAFTS, CheckpointCandidate
from hpclaunch.system.checkpoints.finding import STAGING, ExaminedCheckpoint
from hpclaunch.system.checkpoints.formats.sealed import Sealed
from hpclaunch.system.checkpoints.listing import OWN

HERE = "."  # the key of a checkpoint that lies directly in the root
NOTE = 4096  # bytes; files beside a checkpoint of up to this size may be trackers, like `latest`


def file_at(root: str, name: str) -> StagedFile:
    """Return the file of this name below a directory. Raises OSError."""
    found = os.lstat(os.path.join(root, name))
    file = StagedFile(name, found.st_size, found.st_mtime_ns, found.st_mode, inode=found.st_ino)
    if file.is_link:
        target = _relative_target(root, name)
        return file._replace(target=target, size=len(os.fsencode(target)))
    return file


def _relative_target(root: str, name: str) -> str:
    """Return what a link points to; a path below `root` becomes relative."""
    target = os.readlink(os.path.join(root, name))
    for base in (root, os.path.realpath(root)):
        if os.path.isabs(target) and os.path.commonpath((base, target)) == base:
            return os.path.relpath(target, os.path.dirname(os.path.join(base, name)))
    return target


def is_unchanged(each: StagedFile, root: str) -> bool:
    """Return whether a directory has this file itself, not written, replaced or deleted since, or
    another hard link to it.
    """
    with contextlib.suppress(OSError):
        return file_at(root, each.name).version == each.version
    return False


def is_copied(each: StagedFile, root: str) -> bool:
    """Return whether a directory has a copy of this file: one with the same size and time."""
    with contextlib.suppress(OSError):
        return each.is_file and file_at(root, each.name).identity == each.identity
    return False


def target_of(root: str, name: str) -> str:
    """Return the relative path of what a link points to; it begins with ".." outside the root."""
    return os.path.relpath(os.path.realpath(os.path.join(root, name)), os.path.realpath(root))


def is_draft(name: str) -> bool:
    """Return whether the search counts this name as a file that is being written. Other names that
    begin with a dot are files of the script.
    """
    return name.endswith(DRAFTS) or STAGING.fullmatch(name) is not None or name.startswith(OWN)


def tree(root: str, name: str, skipped: frozenset[str] = frozenset()) -> Iterator[StagedFile]:
    """Yield a file, or a directory and all that is below it, except what is `skipped` or vanishes
    meanwhile. Raises OSError.
    """
    found = file_at(root, name)
    yield found
    if found.is_folder:
        for inner in sorted(os.listdir(os.path.join(root, name))):
            path = os.path.normpath(os.path.join(name, inner))
            if path not in skipped and not (name == HERE and is_draft(inner)):
                with contextlib.suppress(FileNotFoundError):
                    yield from tree(root, path, skipped)


@dataclass(frozen=True)
class Contents:
    """All that belongs to one checkpoint."""

    found: ExaminedCheckpoint
    key: str  # the path of the checkpoint; of several files, that of the first rank
    moved: tuple[str, ...]  # the paths to rename into place on storage, the decisive one last
    items: tuple[StagedFile, ...]  # below these paths, the decisive file last; never empty
    essential: frozenset[str]  # the files that may not change while they are copied

    @cached_property
    def size(self) -> int:
        return sum(each.size for each in self.items if each.is_file)

    @property
    def decisive(self) -> str:
        return self.items[-1].name

    @property
    def time(self) -> int:
        return self.items[-1].time

    @cached_property
    def identity(self) -> frozenset[tuple[object, ...]]:
        """Return a key that changes when the script writes one of the files."""
        return frozenset((each.name, *each.version) for each in self._essential_items)

    @property
    def _essential_items(self) -> Iterator[StagedFile]:
        return (each for each in self.items if each.name in self.essential)

    def is_unchanged(self, root: str) -> bool:
        """Return whether a directory has its essential files, or other hard links to them."""
        return all(is_unchanged(each, root) for each in self._essential_items)

    def is_copied(self, root: str) -> bool:
        """Return whether a directory has copies of its essential files."""
        are_there = all(os.path.lexists(os.path.join(root, name)) for name in self.moved)
        return are_there and all(is_copied(each, root) for each in self._essential_items)


def contents_of(root: str, found: ExaminedCheckpoint) -> Contents:
    """Return what belongs to a checkpoint. Raises OSError if it is just being deleted."""
    candidate = found.candidate
    key = os.path.relpath(candidate.path, root)
    decisive = os.path.relpath(candidate.decides.path, root)
    moved: tuple[str, ...]
    if key == HERE:  # other files may be beside it, such as logs, which change all the time
        parts = {decisive, *(os.path.relpath(part.entry.path, root) for part in found.parts)}
        others = (os.path.relpath(c.path, root) for c in candidate.beside)
        skipped = {o for o in others if not any(f"{p}/".startswith(f"{o}/") for p in parts)}
        items = list(tree(root, HERE, frozenset(skipped)))[1:]
        if isinstance(candidate.format, Sealed):  # it has no file that is newer than its seal
            parts.update(each.name for each in items if each.is_file)
        moved, essential = (HERE,), frozenset(parts)
    else:
        # Composer's checkpoint is known by the file of the first rank, so that is last.
        ranks = sorted((os.path.relpath(c.path, root) for c in candidate.of_ranks), reverse=True)
        moved, key = (*_targets(root, candidate), *ranks), ranks[-1]
        items = [each for name in moved for each in tree(root, name)]
        # A kill may have left one that is unfinished, which no later save replaces.
        finished = (each for each in items if each.is_file and not each.name.endswith(DRAFTS))
        essential = frozenset(each.name for each in finished)
    # The decisive file may be behind a link, or just deleted. Then another one counts as the last.
    items.sort(key=lambda e: (not e.is_folder, e.name in essential, e.name == decisive))
    if not items or items[-1].is_folder or (key == HERE and items[-1].name not in essential):
        raise FileNotFoundError(errno.ENOENT, "just deleted", candidate.path)
    return Contents(found, key, moved, tuple(items), essential)


def _targets(root: str, candidate: CheckpointCandidate) -> Iterator[str]:
    """Yield what a link points to, if that is in the staging directory."""
    if candidate.place.entry.is_link:
        target = target_of(root, os.path.relpath(candidate.path, root))
        if not target.startswith(os.pardir):
            yield target


def notes(
    root: str, key: str, candidates: Sequence[CheckpointCandidate], absent: Collection[str]
) -> list[StagedFile]:
    """Return the small files beside a checkpoint, and the links there that point into it: among
    them are trackers that name the newest one, such as `latest`. Files that name another checkpoint
    which is `absent` on storage are left out. Raises OSError.
    """
    if key == HERE:
        return []
    folder = os.path.dirname(key)
    by_path = {os.path.relpath(c.path, root): c for c in candidates}
    missing = [c for path, c in by_path.items() if path in absent and path != key]
    found = []
    for name in sorted(os.listdir(os.path.join(root, folder))):
        # It may be renamed or deleted meanwhile, or be unreadable, and is no tracker then.
        with contextlib.suppress(FileNotFoundError, PermissionError):
            each = file_at(root, os.path.join(folder, name))
            path = os.path.join(root, each.name)
            if each.is_link:
                is_note = f"{target_of(root, each.name)}/".startswith(f"{key}/")
            else:
                is_small = each.is_file and each.size <= NOTE
                is_seal = any(c.place.facts.seals(name) for c in candidates[:1])  # of the root
                is_other = each.name not in by_path and not is_draft(name) and not is_seal
                is_note = is_small and is_other and not names_any(path, missing)
            if is_note:
                found.append(each)
    return found


def names_any(path: str, candidates: Iterable[CheckpointCandidate]) -> bool:
    """Return whether a file names one of these. Raises OSError."""
    return bool(named_by(path, candidates))


def named_by(path: str, candidates: Iterable[CheckpointCandidate]) -> list[CheckpointCandidate]:
    """Return those of which a file has nothing but the name, path or step. Raises OSError."""
    with open(path, "rb") as file:
        word = os.path.basename(os.fsdecode(file.read(NOTE)).strip())
    return [c for c in candidates if word and word in (c.name, str(c.step.value) if c.step else "")]


def is_part(name: str, moved: Collection[str]) -> bool:
    """Return whether a path belongs to a checkpoint at one of these paths."""
    return name in moved or any(str(parent) in moved for parent in Path(name).parents)
