"""Generations: complete checkpoints, each in one state, and who holds their files.

A file is known by its name, size and time: two files that agree in these count as copies.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..protocol.crc import checksum
from ..protocol.values import field, value
from .files import Identity, StagedFile


@value(frozen=True)
class Manifest:
    """The description of a generation, made by `manifest`."""

    generation: str  # its name, which is also that of a directory; names sort by time
    key: str  # the path of the checkpoint
    files: tuple[StagedFile, ...]
    decisive: str  # the name of the file that is written last
    essential: frozenset[str]  # the names of the files without which it cannot be used
    moved: tuple[str, ...] = ()  # the top-level paths, which are renamed into place

    @property
    def needed(self) -> list[StagedFile]:
        return [f for f in self.files if f.name in self.essential]

    @property
    def own(self) -> frozenset[str]:
        """The names of the files that belong to the checkpoint itself, without the trackers and
        links beside it: those stay, for the next one, when the script deletes it.
        """
        inside = tuple(f"{path}/" for path in self.moved)
        return self.essential | {f.name for f in self.files if f.name.startswith(inside)}

    @property
    def decisive_file(self) -> StagedFile:
        return next(f for f in self.files if f.name == self.decisive)

    @property
    def time(self) -> int:
        return self.decisive_file.time


def manifest(
    key: str,
    files: Iterable[StagedFile],
    decisive: str,
    essential: frozenset[str],
    moved: tuple[str, ...] = (),
) -> Manifest:
    """Return the manifest of a complete checkpoint. Its generation is another one as soon as the
    script writes one of the essential files.
    """
    files = tuple(files)
    state = sorted((f.name, f.size, f.time) for f in files if f.name in essential)
    time = next(f.time for f in files if f.name == decisive)
    generation = f"{time:020}-{checksum(repr((key, state))):08x}"
    return Manifest(generation, key, files, decisive, essential, moved)


@value(frozen=True)
class Kept:
    """The files of a generation that a node keeps beside its staging directory."""

    manifest: Manifest
    names: frozenset[str]  # the files that are whole


@value(frozen=True)
class LastRestore:
    """The last restore that a node has completed. All living nodes record it once the nodes of the
    round have all files, and before workers start.
    """

    number: int = 0  # grows with every restore of the job; 0: none yet
    nodes: frozenset[int] = frozenset()  # of the round, which have all files
    generation: str = ""  # what was restored; "" if there was no checkpoint


@value()
class Holding:
    """The files of one living node."""

    node: int  # its index
    host: str
    files: dict[str, Identity] = field(default_factory=dict)  # of its staging directory, by name
    old: frozenset[str] = frozenset()  # names of files that are unchanged since the last restore
    fetched: frozenset[str] = frozenset()  # names of unchanged files that a restore has copied here
    kept: tuple[Kept, ...] = ()
    restore: LastRestore = LastRestore()

    def has(self, file: StagedFile) -> bool:
        """Return whether the staging directory has this file as it is in the manifest."""
        return self.files.get(file.name) == file.identity

    def keeps(self, manifest: Manifest) -> frozenset[str]:
        """Return the names of the files that are kept for this generation."""
        names = (k.names for k in self.kept if k.manifest.generation == manifest.generation)
        return next(names, frozenset())


def last_restore(holdings: Iterable[Holding]) -> LastRestore:
    """Return the last restore that one of these nodes has completed."""
    return max((h.restore for h in holdings), key=lambda r: r.number, default=LastRestore())
