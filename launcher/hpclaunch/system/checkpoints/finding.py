"""The search: which checkpoints are below a directory, in which order, and which are complete."""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatch
from itertools import chain, pairwise, takewhile
from typing import NamedTuple

from hpclaunch.core.protocol.crc import checksum

from . import split
from .archives import DamagedError
from .candidates import (
    DRAFTS,
    NOTHING_KNOWN,
    CheckpointCandidate,
    Facts,
    IncompleteError,
    Location,
    Part,
    Step,
    step_of,
)
from .formats import OF_DIRECTORIES, OF_FILES, SEAL, UNKNOWN
from .listing import (
    DEEPEST,
    MOST_FOLDERS,
    TROUBLE,
    Entry,
    Folder,
    entry_at,
    is_folder,
    is_kind,
)
from .reading import ResultCache, structure

STAGING = re.compile(r"tmp-checkpoint-\d+|\.tmp\w+|tmp\..+")  # old Trainers, safetensors, timm
NOTHING: Mapping[int, str] = {}
# Below the directory that a script gives them: Accelerate with automatic names, and Lightning.
OF_FRAMEWORKS = ("checkpoints",), ("lightning_logs", "*", "checkpoints")
TORCHTITAN = "checkpoint"  # it saves only directories there; with files, this may be a checkpoint
PAUSE = 120.0  # seconds; a file so much older than the next one was there before the save
LONGEST = 1000  # characters of a line about a checkpoint, which may contain names of any length
REFUSED = {errno.EACCES, errno.EPERM}


class ExaminedCheckpoint(NamedTuple):
    """A candidate, and whether it can be resumed from."""

    candidate: CheckpointCandidate
    rule: str  # what decided its place in the order
    lacks: str | None  # why it cannot be used; None if it is complete
    quiet: bool  # not worth a line to the user as long as there is another checkpoint
    parts: tuple[Part, ...]  # its files; () unless its format found all of them
    size: int  # bytes
    later: CheckpointCandidate | None = None  # the newest of a lower step that was saved later

    @property
    def took(self) -> float:
        """Return the seconds from its first to its last file: the save took at least as long."""
        times = {self.candidate.time, *(part.entry.time for part in self.parts)}
        gaps = ((late - early) / 1e9 for late, early in pairwise(sorted(times, reverse=True)))
        return sum(takewhile(lambda gap: gap <= PAUSE, gaps))


def search(
    where: str,
    facts: Facts = NOTHING_KNOWN,
    cache: ResultCache | None = None,
    *,
    opens: bool = True,
    avoid: Mapping[int, str] = NOTHING,
) -> list[ExaminedCheckpoint]:
    """Return the checkpoints below a directory or pattern, the newest first, up to the first that
    is complete. The last one is chosen, if it lacks nothing. Raises OSError if the directory cannot
    be read; one that does not exist yet counts as empty.
    """
    found: list[ExaminedCheckpoint] = []
    for each in examine(where, facts, cache or ResultCache(), opens=opens, avoid=avoid):
        found.append(each)
        if each.lacks is None:
            break
    return found


def examine(
    where: str,
    facts: Facts,
    cache: ResultCache,
    *,
    opens: bool = True,
    avoid: Mapping[int, str] = NOTHING,
    is_wanted: Callable[[CheckpointCandidate], bool] = lambda _: True,
) -> Iterator[ExaminedCheckpoint]:
    """Yield all candidates, in the order in which they would be chosen.

    With `opens`, files are opened to see whether they are whole; otherwise it is enough that none
    is missing. `avoid` has the reasons not to choose a checkpoint, by the checksum of its mark.
    `is_wanted` is called once the one before was used; those that are not wanted are not opened.
    """
    ordered = in_order(list(candidates(where, facts)))
    fuller = any(c.bare is False and not c.export for c, _, _ in ordered)
    for candidate, rule, later in ordered:
        if not is_wanted(candidate):
            continue
        quiet = ""
        if candidate.export:
            quiet = f"no resume point: {candidate.export}"
        elif candidate.bare and fuller:
            quiet = "no resume point: a model without an optimizer, beside checkpoints that have it"
        if quiet:
            yield ExaminedCheckpoint(candidate, rule, quiet, True, (), candidate.decides.size)
        elif why := avoid.get(checksum(candidate.mark)):
            yield ExaminedCheckpoint(candidate, rule, why, False, (), candidate.decides.size)
        elif found := _judged(candidate, rule, cache, opens=opens):
            yield found._replace(later=later)


def look_at(
    where: str, path: str, facts: Facts, cache: ResultCache, *, opens: bool = True
) -> ExaminedCheckpoint | None:
    """Return the candidate at `path`, however old; None if there is none. Raises OSError."""
    found = next((each for each in candidates(where, facts) if each.path == path), None)
    return None if found is None else _judged(found, "", cache, opens=opens)


def _judged(
    candidate: CheckpointCandidate, rule: str, cache: ResultCache, *, opens: bool
) -> ExaminedCheckpoint | None:
    """Return the candidate and what it lacks; None if it was deleted meanwhile."""
    try:
        parts = tuple(candidate.format.parts(candidate))
        lacks = cache.damage.get(candidate.mark) or (structure(parts, cache) if opens else "")
    except (IncompleteError, DamagedError) as e:
        parts, lacks = (), str(e)
    except OSError as e:
        if _is_gone(candidate.path):
            return None
        parts, lacks = (), f"unreadable, or just being deleted ({e.strerror or e})"
    size = sum(part.entry.size for part in parts) or candidate.decides.size
    return ExaminedCheckpoint(candidate, rule, lacks[:LONGEST] or None, False, parts, size)


def _is_gone(path: str) -> bool:
    try:
        os.lstat(path)
    except OSError as e:
        return e.errno in (errno.ENOENT, errno.ENOTDIR)
    return False


# Where they are


def roots(where: str) -> list[str]:
    """Return the directories that a path or a pattern stands for: of a path, also those below it in
    which frameworks save. A path that exists is no pattern. Raises NotADirectoryError for a file,
    and OSError if it is not known what is there.
    """
    where = os.path.abspath(where)
    if is_folder(where, refusals=TROUBLE | REFUSED):
        below = (_matching(where, names, [MOST_FOLDERS]) for names in OF_FRAMEWORKS)
        inner = [path for path in chain(*below) if not _is_checkpoint(path)]
        path = os.path.join(where, TORCHTITAN)
        if is_folder(path) and not _is_checkpoint(path, known=False):
            inner.append(path)
        return [where, *inner]
    if os.path.lexists(where):
        raise NotADirectoryError(errno.ENOTDIR, "it is not a directory", where)
    base, pattern = split(where)
    if not pattern:
        return []
    found = _matching(base, tuple(pattern.split(os.sep)), [MOST_FOLDERS])
    return list(dict.fromkeys(found))


def _matching(base: str, names: tuple[str, ...], left: list[int], depth: int = 0) -> Iterator[str]:
    """Yield the directories below `base` that match the patterns. `**` enters no checkpoint."""
    if depth > DEEPEST:
        return
    if not names:
        yield base
        return
    name, rest = names[0], names[1:]
    if name != "**" and not glob.has_magic(name):
        inner = os.path.join(base, name)
        if is_folder(inner):
            yield from _matching(inner, rest, left, depth)
        return
    if name == "**":
        yield from _matching(base, rest, left, depth)
    left[0] -= 1
    if left[0] < 0:
        raise OSError(
            f"the pattern goes through more than {MOST_FOLDERS} directories: begin it further down"
        )
    try:
        with os.scandir(base) as entries:
            folders = sorted(
                e.name
                for e in entries
                if (name != "**" or not e.is_symlink()) and is_kind(e, e.is_dir)
            )
    except OSError as e:
        if e.errno in TROUBLE:
            raise
        return
    for folder in folders:
        if not _is_draft(folder) and (name == "**" or fnmatch(folder, name)):
            path = os.path.join(base, folder)
            if name == "**" and _is_checkpoint(path):
                continue
            yield from _matching(path, names if name == "**" else rest, left, depth + 1)


def _is_checkpoint(path: str, *, known: bool = True) -> bool:
    try:
        location = Location(entry_at(path), Folder(os.path.dirname(path)))
    except OSError:
        return False
    return _recognise(location, known=known) is not None


def candidates(where: str, facts: Facts) -> Iterator[CheckpointCandidate]:
    """Yield the candidates in the directories that a path or a pattern stands for."""
    searched = set(roots(where))
    skipped = {*REFUSED}  # a pattern may match directories of other users
    if os.path.basename(os.path.abspath(where)) == "**":
        skipped.add(errno.EFBIG)  # `**` may also match large directories of data
    refused = None
    is_any_listed = False
    for path in searched:
        try:
            found = _in(path, facts)
        except FileNotFoundError:  # deleted meanwhile
            continue
        except OSError as e:
            if e.errno not in skipped:
                raise
            refused = e
            continue
        is_any_listed = True
        # A searched directory of no known format contains the checkpoints, and is none itself.
        yield from (c for c in found if c.format is not UNKNOWN or c.path not in searched)
    if refused is not None and not is_any_listed:
        raise refused


def _in(path: str, facts: Facts) -> list[CheckpointCandidate]:
    """Return the candidates in a directory, and the directory itself if it is one."""
    root = Folder(path)
    found: list[CheckpointCandidate] = []
    own = Location(entry_at(path), Folder(os.path.dirname(path)), facts)
    if not facts.excludes(own.name) and (itself := _recognise(own, known=True)):
        found.append(itself)
    seen = set()
    for entry in _entries(root):
        if _is_draft(entry.name) or facts.excludes(entry.name, entry.path):
            continue
        key = (entry.stat.st_dev, entry.stat.st_ino)
        if entry.is_link and key in seen:
            continue  # the same file has been seen under its own name
        seen.add(key)
        if candidate := _recognise(Location(entry, root, facts)):
            found.append(candidate)
    for candidate in found:
        candidate.beside = found
    return found


def _entries(root: Folder) -> list[Entry]:
    """Return the entries of a directory that can be read, links last."""
    entries = [*root.files.look().values(), *root.folders.look().values()]
    return sorted(entries, key=lambda entry: entry.is_link)


def _recognise(place: Location, *, known: bool = False) -> CheckpointCandidate | None:
    """Return the candidate at a location, if there is one. With `known`, a directory must have a
    known format: files that look saved are not enough.
    """
    formats = OF_DIRECTORIES if place.entry.is_folder else OF_FILES
    if place.facts.complete and place.entry.is_folder:
        formats = (SEAL, UNKNOWN)  # the user has said what seals a directory
    for form in formats:
        if known and form is UNKNOWN:
            continue
        try:
            found = form.recognise(place)
        except DamagedError:
            continue
        except OSError as e:  # another format might take it for complete
            step = step_of(place.name)
            is_trouble = e.errno in TROUBLE
            unreadable = CheckpointCandidate(place, _Unreadable(e), place.entry, step, bare=None)
            return unreadable if is_trouble else None
        if found is not None:
            return found
    return None


class _Unreadable:
    """The format of a checkpoint whose own format is not known, since reading it has failed."""

    name = "unreadable"
    load = ""

    def __init__(self, error: OSError) -> None:
        self._error = error

    def recognise(self, place: Location) -> None:  # noqa: ARG002 - as in Format
        return None

    def parts(self, candidate: CheckpointCandidate) -> Iterable[Part]:  # noqa: ARG002 - likewise
        raise self._error


def others(places: Iterable[str]) -> list[str]:
    """Return the names of all files in these directories, except hidden ones."""
    names: list[str] = []
    for path in places:
        with contextlib.suppress(OSError):
            names += sorted(name for name in os.listdir(path) if not name.startswith("."))
    return names


def _is_draft(name: str) -> bool:
    return name.startswith(".") or name.endswith(DRAFTS) or STAGING.fullmatch(name) is not None


# Which is the newest


def in_order(
    found: list[CheckpointCandidate],
) -> list[tuple[CheckpointCandidate, str, CheckpointCandidate | None]]:
    """Sort candidates, the newest first, each with the rule that decided its position, and the
    newest of those with lower steps that were saved later.

    In one directory, a higher step is newer, whatever the times are: a copy may not have kept them.
    So a checkpoint counts as saved no earlier than those with lower steps. If all names have an
    epoch as well, that comes first. Between directories the time decides, since steps of different
    runs cannot be compared.
    """
    groups: dict[tuple[str, str], list[tuple[CheckpointCandidate, Step]]] = defaultdict(list)
    for candidate in found:
        if (step := candidate.step) is not None:
            groups[candidate.place.root.path, step.unit].append((candidate, step))
    times = {id(candidate): candidate.time for candidate in found}
    ahead: dict[int, CheckpointCandidate] = {}  # by id: one with a lower step but a later time
    progress: dict[int, tuple[int, int]] = {}  # by id: (epoch, step)
    for group in groups.values():
        have_epochs = all(step.epoch is not None for _, step in group)
        for candidate, step in group:
            progress[id(candidate)] = have_epochs * (step.epoch or 0), step.value
        rising = sorted((c for c, _ in group), key=lambda c: (progress[id(c)], c.time))
        latest = rising[0]
        for candidate in rising:
            if candidate.time >= latest.time:
                latest = candidate
            else:
                times[id(candidate)] = latest.time
                ahead[id(candidate)] = latest

    def key(candidate: CheckpointCandidate) -> tuple[object, ...]:
        own = not candidate.place.entry.is_link
        advance = progress.get(id(candidate), (-1, -1))
        return times[id(candidate)], advance, own, _natural(candidate.name)

    def rule(candidate: CheckpointCandidate) -> str:
        step = candidate.step
        if step is None:
            return "by time"
        by_step = f"{step}, by {step.source}"
        other = ahead.get(id(candidate))
        return f"{by_step}, though {other.name} was saved later" if other else by_step

    return [(c, rule(c), ahead.get(id(c))) for c in sorted(found, key=key, reverse=True)]


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a key that puts epoch-10 after epoch-9."""
    return [(int(digits or -1), text) for digits, text in re.findall(r"(\d+)|(\D+)", name)]
