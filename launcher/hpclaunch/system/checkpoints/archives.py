"""The structure of files by torch.save and safetensors: it shows whether a file is whole, and
where its parts with a checksum are.

torch.save writes a zip archive without compression, from front to back, with its directory last.
Its older form is a few pickles and then the storages that they name, without any checksum.
safetensors writes the sizes first, so the size alone shows that a file was cut short.

Every file of a checkpoint is opened here. The limits below bound how much of a damaged file is read
at once.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import struct
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple
from zipfile import ZIP_STORED, BadZipFile, ZipFile, ZipInfo

from hpclaunch.system.shared import bounded_json

from . import pickles

if TYPE_CHECKING:
    from .listing import Entry

LOCAL, DESCRIPTOR = b"PK\x03\x04", b"PK\x07\x08"
DESCRIBED = 8  # a flag: a descriptor follows the data
END, END64, LOCATOR64 = b"PK\x05\x06", b"PK\x06\x06", b"PK\x06\x07"
LEGACY = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # a pickle of torch's magic number
HEAD, TAIL = 128, 22 + 20 + 56
UTF8 = 0x800  # a flag: the name of a member is in this encoding
BUFFER = 1 << 16
MOST_HEADER = 64 << 20
MOST_PICKLE = 1 << 30  # bytes: room for about 4 million parts of tensors
MOST_JSON = 4 << 20  # bytes; a longer file is not parsed

CUT = "cut short or still being written"
EMPTY = "empty"
UNWRITTEN = "not written out"  # zeros: the file system has lost the data
FOREIGN = "not written by torch.save"

# Bytes of an element, by the type of a storage in torch's older form.
_SIZES = {
    "Double": 8, "Float": 4, "Half": 2, "BFloat16": 2, "Long": 8, "Int": 4, "Short": 2, "Char": 1,
    "Byte": 1, "Bool": 1, "ComplexFloat": 8, "ComplexDouble": 16, "QInt8": 1, "QUInt8": 1,
    "QInt32": 4, "Untyped": 1,
}  # fmt: skip


class DamagedError(Exception):
    """A file or a directory is damaged. The text says how, in a few words."""


class Window:
    """`length` bytes of an open file, from `start` on, as if they were a file of their own."""

    def __init__(self, fd: int, length: int, start: int = 0) -> None:
        self.fd, self.start, self.length = fd, start, length

    def read(self, at: int, length: int) -> bytes:
        """Return these bytes. Raises DamagedError if they are not there."""
        if at < 0 or at + length > self.length:
            raise DamagedError(CUT)
        data = self.beginning(length, at)
        if len(data) < length:
            raise DamagedError(CUT)
        return data

    def head(self) -> bytes:
        return self.beginning(HEAD)

    def beginning(self, most: int, at: int = 0) -> bytes:
        """Return `most` bytes from `at` on, or fewer if the file ends before. Raises OSError."""
        most = min(most, self.length - at)
        data = os.pread(self.fd, most, self.start + at)
        while len(data) < most:  # a file system may return fewer than are there
            more = os.pread(self.fd, most - len(data), self.start + at + len(data))
            if not more:
                break
            data += more
        return data

    def stream(self) -> io.BufferedReader:
        return io.BufferedReader(_WindowStream(self), BUFFER)


class _WindowStream(io.RawIOBase):
    """A window as a raw stream."""

    def __init__(self, window: Window) -> None:
        self._window, self._at = window, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        room = memoryview(buffer)[: max(0, self._window.length - self._at)]
        count = os.preadv(self._window.fd, [room], self._window.start + self._at) if room else 0
        self._at += count
        return count

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._window.length}
        if (at := base[whence] + offset) < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        self._at = at
        return at


@contextlib.contextmanager
def opened(path: str) -> Iterator[Window]:
    """Open a file as one window. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield Window(fd, os.fstat(fd).st_size)
    finally:
        os.close(fd)


def read_beginning(path: str, most: int) -> bytes:
    """Return the first `most` bytes of a file, or all if it has fewer. Raises OSError."""
    with opened(path) as window:
        return window.beginning(most)


def check_torch(window: Window) -> bool:
    """Check a file by torch.save. Return False for one of another kind. Raises DamagedError."""
    head = window.head()
    _not_blank(head)
    if head[:4] == LOCAL:
        if not is_torch(head):
            return False
        _check_directory(window)
        return True
    if head.startswith(LEGACY):
        _check_legacy(window)
        return True
    if LOCAL.startswith(head[:4]) or LEGACY.startswith(head):
        raise DamagedError(CUT)
    return False


def is_torch(head: bytes) -> bool:
    """Return whether an archive begins as torch's do: with the pickle, or with the first tensor if
    C++ or TorchScript wrote it.
    """
    if len(head) < 30 or head[:4] != LOCAL:
        return False
    length = int.from_bytes(head[26:28], "little")
    name = head[30 : 30 + length]
    # A long name may not fit into the head: then only its beginning is known.
    return name.endswith((b"/data.pkl", b"/data/0")) or (
        len(name) < length and b"/" not in name[:-9]
    )


def check_tensors(window: Window) -> None:
    """Check the header of a safetensors file, and the size that it claims. Raises DamagedError."""
    if not window.length:
        raise DamagedError(EMPTY)
    length = int.from_bytes(window.read(0, 8), "little")
    if not length:
        raise DamagedError(UNWRITTEN)
    if length > MOST_HEADER:
        raise DamagedError("not written by safetensors")
    text = window.read(8, length)
    _not_blank(text[:HEAD])
    try:
        header = bounded_json.loads(text)
        ends = [int(v["data_offsets"][1]) for name, v in header.items() if name != "__metadata__"]
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError) as e:
        raise DamagedError("damaged (its header is not that of safetensors)") from e
    end = 8 + length + max(ends, default=0)
    if window.length < end:
        raise DamagedError(CUT)
    if window.length > end:
        raise DamagedError("longer than its header says")


def check_json(window: Window) -> None:
    if not window.length:
        raise DamagedError(EMPTY)
    if window.length > MOST_JSON:  # a long training's log, whose last brace is not indented
        if window.read(window.length - HEAD, HEAD).rstrip()[-2:] != b"\n}":
            raise DamagedError(CUT)
        return
    text = window.read(0, window.length)
    _not_blank(text[:HEAD])
    try:
        bounded_json.loads(text)
    except ValueError as e:
        raise DamagedError(CUT) from e


def _not_blank(head: bytes) -> None:
    if not head:
        raise DamagedError(EMPTY)
    if not head.strip(b"\0"):
        raise DamagedError(UNWRITTEN)


# The zip archive


def _check_directory(window: Window) -> int:
    """Return the number of members in an archive's directory. Only the records that locate it may
    follow it in the file. Raises DamagedError.
    """
    size = window.length
    tail = window.read(max(0, size - TAIL), min(size, TAIL))
    end = tail[-22:]
    if len(tail) < 22 or end[:4] != END:
        raise DamagedError(CUT)
    count, length, begin = struct.unpack("<HII", end[10:20])
    after = size - 22
    locator = tail[-42:-22]
    if locator[:4] == LOCATOR64:
        at = int.from_bytes(locator[8:16], "little")
        record = tail[-98:-42]
        if len(record) < 56 or record[:4] != END64 or at != size - 98:
            raise DamagedError("damaged (its directory is not where it should be)")
        count, length, begin = struct.unpack("<QQQ", record[32:56])
        after = at
    if begin + length != after:
        raise DamagedError("damaged (its directory is not where it should be)")
    return int(count)


def members(window: Window) -> list[ZipInfo]:
    """Return the members of a zip archive. Raises DamagedError and OSError."""
    count = _check_directory(window)
    try:
        with ZipFile(window.stream()) as archive:
            found = archive.infolist()
    except (BadZipFile, NotImplementedError, ValueError, struct.error) as e:
        if isinstance(e.__context__, OSError):  # zipfile hides that it could not read
            raise e.__context__ from None
        raise DamagedError("damaged (its directory)") from e
    if len(found) != count:
        raise DamagedError("damaged (its directory)")
    return found


def contents(window: Window, member: ZipInfo) -> int:
    """Return where the content of a member begins, after its header. Raises DamagedError."""
    name = member.orig_filename.encode("utf-8" if member.flag_bits & UTF8 else "cp437")
    header = window.read(member.header_offset, 30 + len(name))
    names, extras = struct.unpack("<HH", header[26:30])
    if header[:4] != LOCAL or header[30:] != name or names != len(name):
        raise DamagedError(f"damaged ({member.filename} is not where it should be)")
    begin: int = member.header_offset + 30 + names + extras
    if int.from_bytes(header[6:8], "little") & DESCRIBED:
        if window.read(begin + member.compress_size, 4) != DESCRIPTOR:
            raise DamagedError(f"damaged (nothing follows {member.filename})")
    elif begin + member.compress_size > window.length:
        raise DamagedError(CUT)
    return begin


class Pickled(NamedTuple):
    """The place of the pickled object in a file by torch.save."""

    window: Window
    before: int  # the number of pickles before it in the window


def pickled(window: Window) -> Pickled:
    """Find the object of a file by torch.save, of either form. Raises DamagedError."""
    head = window.head()
    if head[:4] == LOCAL:
        for member in members(window):
            if member.filename.endswith("/data.pkl") and member.compress_type == ZIP_STORED:
                begin, length = contents(window, member), min(member.file_size, MOST_PICKLE)
                return Pickled(Window(window.fd, length, window.start + begin), 0)
    elif head.startswith(LEGACY):
        return Pickled(window, 3)
    raise DamagedError(FOREIGN)


def fields(window: Window, *names: str) -> dict[str, pickles.Field]:
    """Return these fields of a dictionary that torch.save has written. Raises DamagedError."""
    found = pickled(window)
    try:
        return pickles.fields(found.window, names, found.before)
    except ValueError as e:
        raise DamagedError(CUT) from e


def fields_of(file: Entry, *names: str) -> dict[str, pickles.Field]:
    """Return what `fields` finds in a file; {} if the file is damaged. Raises OSError."""
    try:
        return _fields_of(file.path, file.identity, names)
    except DamagedError:  # not cached: the next try may succeed
        return {}


@lru_cache(maxsize=2048)
def _fields_of(
    path: str, _identity: tuple[int, ...], names: tuple[str, ...]
) -> dict[str, pickles.Field]:
    with opened(path) as window:
        return fields(window, *names)


# The older form


def _check_legacy(window: Window) -> None:
    """Check a file in the older form: each storage begins with the number of its elements."""
    try:
        stored, at = pickles.storages(window)
    except ValueError as e:
        raise DamagedError(CUT) from e
    for kind, count in stored:
        size = _SIZES.get(kind.removesuffix("Storage"))
        if size is None:
            raise DamagedError(
                f"not known to be whole (it has a storage of the type {kind or '?'})"
            )
        if int.from_bytes(window.read(at, 8), "little") != count:
            raise DamagedError("damaged (a storage is not where it should be)")
        at += 8 + count * size
    if at > window.length:
        raise DamagedError(CUT)
