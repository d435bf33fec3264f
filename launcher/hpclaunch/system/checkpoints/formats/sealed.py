"""A directory in a script's own format. It is complete once it contains its seal, the file that the
script writes last: `.complete`, or what --checkpoint-complete names. Without a seal, nothing shows
whether the files of a rank are missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from ..candidates import (
    COMPLETE,
    CheckpointCandidate,
    Facts,
    FileKind,
    IncompleteError,
    Location,
    Part,
    need,
    none_newer,
    step_of,
)
from ..listing import SAVED, Entry, Folder, saved_in
from . import dcp


class Sealed:
    name = "sealed"
    load = "as the script has saved it"

    def recognise(self, place: Location) -> CheckpointCandidate | None:
        if (seal := _seal(place.folder, place.facts)) is None:
            return None
        return CheckpointCandidate(place, self, seal, step_of(place.name))

    def parts(self, candidate: CheckpointCandidate) -> Iterable[Part]:
        for prefix, folder in candidate.folder.tree():
            names = [*folder.files]
            folder.files.look()
            found = [Part.of(need(folder.files, name), prefix + name) for name in names]
            none_newer(found, candidate.decides)
        yield from _structured(candidate.folder)


class Unsealed:
    """Any other directory with files that look saved: nothing shows whether one is missing."""

    name = "directory"
    load = Sealed.load

    def recognise(self, place: Location) -> CheckpointCandidate | None:
        files = place.folder.files
        saved = saved_in(place.folder)
        if not saved:
            return None
        latest = max((files[name] for name in saved), key=lambda entry: entry.time)
        return CheckpointCandidate(place, self, latest, step_of(place.name), bare=None)

    def parts(self, candidate: CheckpointCandidate) -> Iterable[Part]:
        if complete := candidate.facts.complete:
            raise IncompleteError(f"no {complete} in it (--checkpoint-complete)")
        several = sum(step_of(name) is not None for name in candidate.folder.files) > 1
        hint = f"; if each file in it is one: --checkpoint-dir '{candidate.path}'" * several
        saved = saved_in(candidate.folder)
        if len(saved) == 1:
            root = candidate.place.root.path
            hint = f"; if {saved[0]} is all that is needed: --checkpoint-dir '{root}/*'"
        raise IncompleteError(
            f"nothing says that it is complete: no format that is known here, and no {COMPLETE}, "
            f"which a script writes once all ranks have saved{hint}"
        )


def _seal(folder: Folder, facts: Facts) -> Entry | None:
    if COMPLETE in folder.files:
        return folder.files[COMPLETE]
    if not facts.complete:
        return None
    found = [
        inner.files[name]
        for prefix, inner in folder.tree()
        for name in inner.files
        if facts.seals(prefix + name)
    ]
    return max(found, key=lambda entry: entry.time, default=None)


def _structured(root: Folder) -> Iterator[Part]:
    """Yield the files whose structure can be checked."""
    for prefix, folder in root.tree():
        metadata = dcp.metadata_of(folder)
        for part in chain.from_iterable(dcp.shards(folder, each) for each in metadata):
            yield part._replace(label=prefix + part.label)
        for name in folder.files:
            if name.endswith(SAVED) and not (metadata and name.endswith(dcp.SHARD)):
                part = Part.of(folder.files[name], prefix + name)
                of_torch = part.kind is FileKind.TORCH  # by its name, which says little here
                yield part._replace(kind=FileKind.ANY) if of_torch else part
