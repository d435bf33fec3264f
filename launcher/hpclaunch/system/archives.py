"""What torch.save has written, and whether all of it is there. Nothing is unpickled: whoever can
write a file must not run code in the agent. Standard library only.
"""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SHARD = ".distcp"
SUFFIXES = {".pt", ".pth", ".ckpt", ".bin", ".tar", SHARD}
CHUNK = 1 << 20


def incomplete(path: Path, pieces: Sequence[tuple[int, int]] = ()) -> str | None:
    """None if torch.save wrote all of it, "" for a file of another kind, else what it lacks.

    `pieces`: (start, length) in bytes of each archive, where a file has several.

    torch.save writes a zip archive without compression, its table of contents last. A file that
    was cut short has no table; one whose pages never reached the disk has a table and contents
    with the wrong checksum, which torch.load itself does not notice: hence every byte is read.
    """
    try:
        with path.open("rb") as f:
            size = os.fstat(f.fileno()).st_size
            found: str | None = None
            for start, length in pieces or [(0, size)]:
                if start + length > size:
                    return "cut short or still being written"
                found = _verify(_View(f.fileno(), start, length), path.suffix in SUFFIXES)
                if found:
                    return found
            return found
    except zipfile.BadZipFile as e:
        cut = "not a zip file" in str(e)
        return "cut short or still being written" if cut else f"damaged ({e})"
    except (OSError, EOFError, NotImplementedError, RuntimeError) as e:
        return f"unreadable ({e})"


def _verify(view: _View, has_contents: bool) -> str | None:
    """`incomplete` of one archive; `has_contents`: it would not be there with nothing in it."""
    magic = view.read(4)
    if not magic or not magic.strip(b"\0"):
        # A page of zeros where a checkpoint should begin was never written out.
        return ("not written out" if magic else "empty") if has_contents else ""
    if magic != b"PK\x03\x04":
        return ""
    with zipfile.ZipFile(io.BufferedReader(view)) as archive:
        names = archive.namelist()
        if not any(name.endswith("/data.pkl") for name in names):
            return ""
        for name in names:
            with archive.open(name) as member:
                while member.read(CHUNK):
                    pass
    return None


class _View(io.RawIOBase):
    """`length` bytes of an open file, from `start` on, as a file of its own."""

    def __init__(self, fd: int, start: int, length: int) -> None:
        self._fd, self._start, self._length = fd, start, length
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        at = (0, self._at, self._length)[whence] + offset
        if at < 0:
            raise OSError(f"{-at} bytes before its beginning")
        self._at = at
        return at

    def readinto(self, buffer: Any) -> int:
        most = min(len(buffer), max(0, self._length - self._at))
        data = os.pread(self._fd, most, self._start + self._at)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)
