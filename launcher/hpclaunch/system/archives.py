"""What torch.save has written, and whether all of it is there. Nothing is unpickled: whoever can
write a file must not run code in the agent. Standard library only.
"""

from __future__ import annotations

import io
import os
import struct
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SHARD = ".distcp"
SUFFIXES = {".pt", ".pth", ".ckpt", ".bin", ".tar", SHARD}
CHUNK = 1 << 20
HEADER, LENGTHS = 30, 26  # bytes before a member's name, and where its lengths are among these
HAS_FOOTER = 8  # a flag of a member: after its contents come its checksum and sizes,
FOOTER = b"PK\x07\x08"  # which begin with this


def incomplete(path: Path, pieces: Sequence[tuple[int, int]] = ()) -> str | None:
    """None if torch.save wrote all of it, "" for a file of another kind, else what it lacks.

    `pieces`: (start, length) in bytes of each archive, where a file has several.

    torch.save writes a zip archive without compression, its table of contents last. A file that
    was cut short has no table; one whose pages never reached the disk has a table and contents
    with the wrong checksum, which torch.load itself does not notice: hence every byte is read.
    After `torch.serialization.set_crc32_options(False)` every checksum is 0. Of such a file the
    structure counts: what stands before and after each member, and that all can be read.
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
        members = archive.infolist()
        if not any(member.filename.endswith("/data.pkl") for member in members):
            return ""
        has_checksums = any(member.CRC for member in members)
        for member in members:
            _read(archive, member, has_checksum=has_checksums)
            if not has_checksums and not _ends(view, member):
                raise zipfile.BadZipFile(f"{member.filename} does not end where it should")
    return None


def _read(archive: zipfile.ZipFile, member: zipfile.ZipInfo, *, has_checksum: bool) -> None:
    """Raises BadZipFile where what is in the archive does not begin as it should, or for a wrong
    checksum, EOFError where it ends too soon."""
    with archive.open(member) as contents:
        try:
            while contents.read(CHUNK):
                pass
        except zipfile.BadZipFile:  # at the end of it, and only for the checksum
            if has_checksum:
                raise


def _ends(view: _View, member: zipfile.ZipInfo) -> bool:
    """Whether its sizes are there where its contents end; 8 bytes each in a large archive."""
    if not member.flag_bits & HAS_FOOTER:
        return True
    name, extra = struct.unpack("<2H", view.peek(member.header_offset + LENGTHS, 4))
    end = member.header_offset + HEADER + name + extra + member.compress_size
    found, sizes = view.peek(end, 24), (member.compress_size, member.file_size)
    told = [struct.pack("<2I", *sizes)] if max(sizes) < 1 << 32 else []
    told.append(struct.pack("<2Q", *sizes))
    return found.startswith(FOOTER) and found[8:].startswith(tuple(told))


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

    def peek(self, start: int, length: int) -> bytes:
        """As much of it as there is; the position stays, since others read from there."""
        return os.pread(self._fd, max(0, min(length, self._length - start)), self._start + start)

    def readinto(self, buffer: Any) -> int:
        most = min(len(buffer), max(0, self._length - self._at))
        data = os.pread(self._fd, most, self._start + self._at)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)
