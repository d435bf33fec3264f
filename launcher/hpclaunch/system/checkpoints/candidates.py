"""The types of this package: a location that may hold a checkpoint, the candidate that a format
recognises there, and the parts that have to be whole for it to be complete.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from fnmatch import fnmatch
from functools import cached_property
from typing import NamedTuple, Protocol

from .listing import Entry, Folder, Identity

SECOND = 10**9  # nanoseconds
SLACK = 2 * SECOND  # allowed difference between the clocks of nodes that write one checkpoint
SETTLED = 10 * SECOND  # after a write; a process that still runs has finished its save by then

OF_RANK = re.compile(r"(rank[-_]?)\d+")  # in the names of Composer's files, and of many scripts
DRAFTS = (".tmp", ".part", ".partial", ".temp")
COMPLETE = ".complete"  # a script's own seal: the file that it writes last

# A number in a name is the step of the training if one of these words is before it.
_WORDS = {
    "step": r"global_?steps?|steps?|iterations?|iter|updates?|ba|batch",
    "epoch": r"epochs?|ep",
    "number": r"checkpoint|ckpt|snapshot|save",
}
_STEPS = [
    (unit, re.compile(rf"(?<![a-z])(?:{words})[-_=]?(\d+)", re.IGNORECASE))
    for unit, words in _WORDS.items()
]
_EPOCH = dict(_STEPS)["epoch"]


class IncompleteError(Exception):
    """A checkpoint is not complete. The text says why, and what to do."""


class Step(NamedTuple):
    """The progress of the training. Steps are compared only with others of the same unit."""

    value: int
    unit: str  # "step", "epoch", or "number" for one that may be either
    source: str  # "its name", or the file that says so
    epoch: int | None = None  # from the same name: a script may count its steps anew in each epoch

    @property
    def scale(self) -> str:
        """Return the scale: progress is measured by the steps of one scale only."""
        return self.unit if self.epoch is None else f"{self.unit} of epoch {self.epoch}"

    def __str__(self) -> str:
        return f"{self.unit} {self.value}"


def step_of(name: str) -> Step | None:
    """Return the step in a name: checkpoint-30, epoch=1-step=10.ckpt, iter_0000010, 0000100.pt."""
    for unit, pattern in _STEPS:
        if found := pattern.findall(name):
            epochs = _EPOCH.findall(name) if unit == "step" else []
            return Step(int(found[-1]), unit, "its name", int(epochs[-1]) if epochs else None)
    stem = name.partition(".")[0]
    return Step(int(stem), "number", "its name") if stem.isdecimal() else None


class RoundPeriod(NamedTuple):
    """The time of a round of this job, in nanoseconds of the wall clock."""

    begun: int
    ended: int  # or the time of the search, while it runs
    world: int  # how many ranks it has


@dataclass(frozen=True)
class Facts:
    """Facts about a directory of checkpoints, from the user and the launcher."""

    exclude: tuple[str, ...] = ()  # patterns of names that are no checkpoints
    complete: str = ""  # pattern of the file that seals a directory; "": the format's own rule
    rounds: tuple[RoundPeriod, ...] = ()  # of this job, the oldest first

    def round_at(self, time: int) -> RoundPeriod | None:
        """Return the last round that began before this time; None if none is known."""
        before = [r for r in self.rounds if r.begun <= time]
        return before[-1] if before else None

    def world_at(self, time: int) -> int | None:
        found = self.round_at(time)
        return None if found is None else found.world

    def without_left(self, ranks: Mapping[int, Entry], time: int) -> dict[int, Entry]:
        """Return the files of the ranks that saved in the round of this time. An interrupted save
        of an earlier round with more ranks may have left its files in the same directory.
        """
        found = self.round_at(time)
        if found is None:
            return dict(ranks)
        return {r: e for r, e in ranks.items() if r < found.world or e.time >= found.begun}

    def is_settled(self, time: int) -> bool:
        """Return whether a process that wrote at this time has finished its save by now: its round
        ran for SETTLED after that, or the write is older than this job.
        """
        found = self.round_at(time)
        return found is None or time < found.ended - SETTLED

    def one_round(self, first: int, last: int) -> bool | None:
        """Return whether both times are in the same round; None if that is not known."""
        a, b = self.round_at(first), self.round_at(last)
        return None if b is None else a == b

    def excludes(self, *names: str) -> bool:
        return any(fnmatch(name, pattern) for name in names for pattern in self.exclude)

    def seals(self, name: str) -> bool:
        """Return whether this file, a path below a directory, seals that."""
        return name == COMPLETE or fnmatch(name, self.complete)


NOTHING_KNOWN = Facts()


class Location:
    """A file or directory that may be a checkpoint; `root` is the directory that it is in."""

    def __init__(self, entry: Entry, root: Folder, facts: Facts = NOTHING_KNOWN) -> None:
        self.entry, self.root, self.facts = entry, root, facts

    @cached_property
    def folder(self) -> Folder:
        """Return this location as a directory."""
        return Folder(self.entry.path)

    @property
    def name(self) -> str:
        return self.entry.name


class FileKind(Enum):
    """The kinds of files. Each has its own test of whether a file is whole."""

    TORCH = "torch"  # written by torch.save
    ANY = "any"  # its structure is checked only if torch.save wrote it
    TENSORS = "tensors"  # written by safetensors
    JSON = "json"
    PIECES = "pieces"  # several archives by torch.save in one file, at `pieces`


class Part(NamedTuple):
    """A file without which a checkpoint cannot be loaded."""

    entry: Entry
    kind: FileKind
    label: str  # its path below the checkpoint; "" for a checkpoint that is one file
    pieces: tuple[tuple[int, int], ...] = ()  # (start, length) in bytes
    named_by: Identity = ()  # of the file that lists the pieces

    @classmethod
    def of(cls, entry: Entry, label: str) -> Part:
        """Return a part whose kind follows from its name."""
        return cls(entry, _KINDS.get(os.path.splitext(entry.name)[1], FileKind.TORCH), label)

    def within(self, folder: str) -> Part:
        return self._replace(label=f"{folder}/{self.label}")

    def says(self, wrong: str) -> str:
        return f"{self.label}: {wrong}" if self.label else wrong

    @property
    def identity(self) -> Identity:
        return (*self.entry.identity, *self.named_by)


_KINDS = {".safetensors": FileKind.TENSORS, ".json": FileKind.JSON}


@dataclass
class CheckpointCandidate:
    """A location that a format has recognised as a checkpoint, complete or not."""

    place: Location
    format: Format
    decides: Entry  # the file whose identity and time are the checkpoint's
    step: Step | None = None
    world: int | None = None  # how many ranks saved it, if the format shows it
    export: str = ""  # why it is never resumed from; "" if it may be
    bare: bool | None = False  # it is a model without an optimizer; None: not known
    # All candidates in the same directory, this one included.
    beside: Sequence[CheckpointCandidate] = field(default=(), repr=False)

    @property
    def path(self) -> str:
        return self.place.entry.path

    @property
    def name(self) -> str:
        return self.place.name

    @property
    def time(self) -> int:
        return self.decides.time

    @property
    def folder(self) -> Folder:
        return self.place.folder

    @property
    def facts(self) -> Facts:
        return self.place.facts

    @property
    def mark(self) -> str:
        """Return a text that identifies this save, the same on every node. A later save may have
        the same path. The device's number is left out, since it differs between nodes.
        """
        s = self.decides.stat
        return f"{self.path} {s.st_ino} {s.st_size} {s.st_mtime_ns}"

    @property
    def of_ranks(self) -> list[CheckpointCandidate]:
        """Return this one, if it is a file, and those beside it whose names differ only in the
        rank, as in `step_5_rank0.pt`: each rank has saved one.
        """
        form = OF_RANK.sub(r"\1", self.name)
        if self.place.entry.is_folder or form == self.name:
            return [self]
        alike = (c for c in self.beside if c.bare in (self.bare, None))  # None: it may be cut short
        return [c for c in alike if OF_RANK.sub(r"\1", c.name) == form]

    def files_of_ranks(self, names: re.Pattern[str], name: str) -> dict[int, Entry]:
        """Return the file of every rank that took part in this save, and set `world`. Raises
        IncompleteError if a rank has none. `names` matches the files' names, with the rank as its
        group; `name` has {} for the rank.
        """
        files, facts = self.folder.files, self.facts
        saved = {int(m[1]): files[each] for each in files if (m := names.fullmatch(each))}
        found = facts.without_left(saved, self.time)
        self.world = all_ranks(found, facts.world_at(self.time), name)
        return found


class Format(Protocol):
    """A format of checkpoints. Its methods read only a little."""

    name: str
    load: str  # how a script loads HPCLAUNCH_CHECKPOINT

    def recognise(self, place: Location) -> CheckpointCandidate | None:
        """Return the candidate at a location; None for one of another format. May raise OSError."""

    def parts(self, candidate: CheckpointCandidate) -> Iterable[Part]:
        """Return the files that have to be whole. Raises IncompleteError if one is missing, or is
        of another save than the rest.
        """


class FileFormat:
    """Base of the formats whose checkpoints are one file each."""

    kind = FileKind.TORCH

    def parts(self, candidate: CheckpointCandidate) -> Iterator[Part]:
        """Yield the files of all ranks that are there. Nothing shows whether one is missing."""
        for each in candidate.of_ranks:
            yield Part(each.decides, self.kind, "" if each is candidate else each.name)


def need(files: Mapping[str, Entry], name: str, why: str = "") -> Entry:
    """Return the file of this name. Raises IncompleteError if there is none."""
    if name not in files:
        raise IncompleteError(f"{name} is missing{why and ', '}{why}")
    return files[name]


def none_newer(parts: Iterable[Part], seal: Entry, slack: int = SLACK) -> None:
    """Raise IncompleteError if a part is newer than the seal, which is written last: the part is
    of a later save in the same place that was not finished.
    """
    latest = seal.time + slack
    for part in parts:
        if part.entry.time > latest:
            raise IncompleteError(
                f"{part.label} is newer than {seal.name}, which is written last: either a later "
                "save was not finished, or a copy has not kept the times (then touch "
                f"{seal.name})"
            )


def all_ranks(found: Iterable[int], world: int | None, name: str) -> int:
    """Return how many ranks have saved. Raises IncompleteError if a rank below `world`, or below
    the highest that has saved, is missing. `name` is the file that it lacks, with {} for the rank.

    A script may start more ranks than `world`, which is the launcher's.
    """
    ranks = set(found)
    count = max(ranks, default=-1) + 1
    for rank in range(max(count, world or 0)):
        if rank not in ranks:
            of = f" of {world}" if world else ""
            raise IncompleteError(
                f"{name.format(rank)} is missing: rank {rank}{of} had not saved yet"
            )
    return count
