"""Which checkpoint to resume from: the newest complete file that torch.save wrote.

Reads only, and in a process of its own: a large file takes seconds to verify and a hung file system
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
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

from . import disk
from .helper import Helper

SUFFIXES = {".pt", ".pth", ".ckpt", ".bin", ".tar"}
DRAFTS = (".tmp", ".part", ".partial")
CHUNK = 1 << 20


def newest(directory: Path) -> tuple[str, list[str]]:
    """(path or "", "name: reason" of those passed over). A directory yet to come has none."""
    passed_over: list[str] = []
    for path in _candidates(directory):
        reason = incomplete(path)
        if reason is None:
            return str(path), passed_over
        if reason or path.suffix in SUFFIXES:
            passed_over.append(f"{path.name}: {reason or 'not written by torch.save'}")
    return "", passed_over


def _candidates(directory: Path) -> list[Path]:
    """Regular files, the newest first; of the same moment, the one with the higher number."""
    found = []
    try:
        entries = list(os.scandir(directory))
    except FileNotFoundError:
        return []
    for entry in entries:
        if entry.name.startswith(".") or entry.name.endswith(DRAFTS):
            continue
        try:
            info = entry.stat()
        except OSError:
            continue  # gone meanwhile, or a link to nothing
        if stat.S_ISREG(info.st_mode):
            found.append((info.st_mtime_ns, _natural(entry.name), Path(entry.path).absolute()))
    return [path for _, _, path in sorted(found, reverse=True)]


def _natural(name: str) -> list[tuple[int, str]]:
    """A key that puts epoch-10 after epoch-9."""
    return [(int(digits or -1), text) for digits, text in re.findall(r"(\d+)|(\D+)", name)]


def incomplete(path: Path) -> str | None:
    """None for a complete file of torch.save, "" for a file of another kind, else what it lacks.

    torch.save writes a zip archive without compression, its table of contents last. A file that
    was cut short has no table; one whose pages never reached the disk has a table and contents
    with the wrong checksum, which torch.load itself does not notice: hence every byte is read.
    """
    try:
        with path.open("rb") as f:
            magic = f.read(4)
        if not magic:
            return "empty"
        if magic != b"PK\x03\x04":
            # A page of zeros where a checkpoint should begin was never written out.
            return "not written out" if not magic.strip(b"\0") else ""
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            if not any(name.endswith("/data.pkl") for name in names):
                return ""
            for name in names:
                with archive.open(name) as member:
                    while member.read(CHUNK):
                        pass
    except zipfile.BadZipFile as e:
        cut = "not a zip file" in str(e)
        return "cut short or still being written" if cut else f"damaged ({e})"
    except (OSError, EOFError, NotImplementedError, RuntimeError) as e:
        return f"unreadable ({e})"
    return None


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
