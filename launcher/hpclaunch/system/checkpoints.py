"""Which checkpoint to resume from: the newest that is complete. It is a file that torch.save wrote
(archives.py) or a directory (sealed.py).

Reads only, and in a process of its own: a large one takes long to verify and a hung file system
takes for ever, and neither may stop the agent's loop. It writes one line, an `Answer`.

Standard library only, since that process has no site-packages.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import stat
from pathlib import Path
from typing import Any, NamedTuple

from hpclaunch.core.wording import plain

from . import disk, sealed
from .archives import SHARD, SUFFIXES, incomplete
from .helper import Helper

DRAFTS = (".tmp", ".part", ".partial")
NAMELESS = "its name is not UTF-8"
LOOSE = "a shard: DCP needs a directory below this one for each checkpoint"


class Candidate(NamedTuple):
    saved: int  # when, in nanoseconds
    is_itself: bool  # not a link: what `latest` leads to has a name of its own
    order: list[tuple[int, str]]  # of those of one moment
    path: Path
    is_file: bool
    seal: Path | None  # of a directory


def newest(directory: Path) -> tuple[str, list[str]]:
    """(path or "", "name: reason" of those passed over). A directory yet to come has none."""
    passed_over: list[str] = []
    for candidate in _candidates(directory):
        path, reason = candidate.path, _reason_against(candidate)
        if reason is None:
            return str(path), passed_over
        if reason:
            passed_over.append(plain(f"{path.name}: {reason}"))
    return "", passed_over


def _reason_against(candidate: Candidate) -> str | None:
    """None for a complete one, "" for what was not meant to be a checkpoint."""
    path, seal = candidate.path, candidate.seal
    if not candidate.is_file:
        reason = sealed.lacks(path, seal) if seal else sealed.unsealed(path)
    elif path.suffix == SHARD:
        reason = LOOSE
    else:
        reason = incomplete(path)
        if reason == "" and path.suffix in SUFFIXES:
            reason = "not written by torch.save"
    return NAMELESS if reason is None and not _is_text(path.name) else reason


def _is_text(name: str) -> bool:
    """Else there are bytes in it that no message can hold."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _candidates(directory: Path) -> list[Candidate]:
    """Files and directories, the newest first; of the same moment, that with the higher number,
    and links last.
    """
    found = []
    try:
        entries = list(os.scandir(directory))
    except FileNotFoundError:
        return []
    for entry in entries:
        if entry.name.startswith(".") or entry.name.endswith(DRAFTS):
            continue
        path, seal = Path(entry.path).absolute(), None
        try:
            info = entry.stat()
            if not (stat.S_ISREG(info.st_mode) or stat.S_ISDIR(info.st_mode)):
                continue
            is_file = stat.S_ISREG(info.st_mode)
            if not is_file and (seal := sealed.seal(path)):
                info = seal.stat()
        except OSError:
            continue  # gone meanwhile, or a link to nothing
        own, order = not entry.is_symlink(), _natural(entry.name)
        found.append(Candidate(info.st_mtime_ns, own, order, path, is_file, seal))
    return sorted(found, reverse=True)


def _natural(name: str) -> list[tuple[int, str]]:
    """A key that puts epoch-10 after epoch-9."""
    return [(int(digits or -1), text) for digits, text in re.findall(r"(\d+)|(\D+)", name)]


class Answer(NamedTuple):
    path: str  # of the newest complete one, "" for none
    passed_over: list[str]  # "name: why", newer ones
    disk: dict[str, Any]  # see `disk.look`


class Search(Helper):
    """A running search; its descriptor becomes readable when the answer is there."""

    def __init__(self, directory: str) -> None:
        super().__init__("hpclaunch.system.checkpoints", directory)

    def answer(self) -> Answer | None:
        """None while there is more to come. Raises OSError when there is none."""
        for told in self.receive():
            return Answer(**told)
        if self.lost:
            raise OSError(f"the search ended with {self._process.wait()}")
        return None

    def close(self) -> None:
        """Also ends a search that is still running."""
        self.abandon()


def main(fd: str, _blocked: str, directory: str) -> None:
    chosen, others = newest(Path(directory))
    answer = {"path": chosen, "passed_over": others, "disk": disk.look(Path(directory))}
    with socket.socket(fileno=int(fd)) as channel, contextlib.suppress(BrokenPipeError):
        channel.sendall(json.dumps(answer).encode() + b"\n")
