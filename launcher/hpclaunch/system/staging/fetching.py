"""The copies of files from other nodes into a directory of this one, in pieces.

Another node names the files, so names that leave the directory are refused.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, zip_longest
from typing import Protocol, TypeAlias

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from hpclaunch.core.staging.copies import Transfer
from hpclaunch.core.staging.files import Identity, StagedFile
from hpclaunch.system.checkpoints.formats.safetensors import SUFFIX

from .copying import Between, at_once, prepare
from .publishing import draft_beside, place

STREAMS = 4  # pieces that a node fetches at the same time
PIECE = 2 << 20  # bytes
END = 1 << 20  # bytes of each end of a file, in which formats have their headers and directories
READ_WHOLE = (".metadata", ".json")  # files that the search reads from begin to end
LENGTH = 8  # bytes at the begin of a safetensors file, which have the length of its header
LARGEST = 256 << 20  # bytes of a file that are read from begin to end; more would fill the memory
Data: TypeAlias = bytes | memoryview
Span: TypeAlias = tuple[int, int]  # offset and length
# The checksums of pieces, by file name and span, find accidents. Encryption keeps attackers out.
Sums: TypeAlias = dict[tuple[str, Span], bytes]
_sums = AESGCM(AESGCM.generate_key(128))


def checksum(data: Data) -> bytes:
    """Return a checksum that only this process can compare. It is a GMAC: where the CPU has
    instructions for AES, that takes a fifth of the time of CRC-32.
    """
    return _sums.encrypt(bytes(12), b"", data)


class Source(Protocol):
    """A node from which files are fetched."""

    def read(self, name: str, kept: str, identity: Identity, offset: int, length: int) -> Data:
        """Return bytes of a file. Raises OSError, and GivenUpError if it is another file now."""


def receive(
    transfers: Sequence[Transfer],
    sources: Mapping[int, Source],
    drafted: str,
    between: Between,
    spans: Callable[[Transfer], Iterable[Span]],
    sums: Sums | None = None,
) -> None:
    """Fetch some spans of each file into a draft, from several nodes at once. Add the checksums of
    what has arrived to `sums`.
    """
    if {each.source for each in transfers} - sources.keys():
        raise OSError(errno.EHOSTUNREACH, "a node that has the files has left")
    by_source: dict[int, list[tuple[Transfer, Span]]] = {}
    for each in transfers:
        refuse_links(drafted, each.file.name)
        prepare([each.file], drafted)
        if each.file.is_file:
            with open(os.path.join(drafted, each.file.name), "xb") as new:
                new.truncate(each.file.size)
            by_source.setdefault(each.source, []).extend((each, span) for span in spans(each))
    done, pending = 0, deque[Future[int]]()
    pool = ThreadPoolExecutor(STREAMS)
    try:
        for piece in filter(None, chain(*zip_longest(*by_source.values()))):
            if len(pending) == 2 * STREAMS:
                between(done := done + pending.popleft().result(), 0.0)
            pending.append(pool.submit(_fetch_piece, sources, drafted, sums, *piece))
        while pending:
            between(done := done + pending.popleft().result(), 0.0)
    finally:
        pool.shutdown(cancel_futures=True)
    for file in (each.file for each in transfers):
        if not file.is_folder:
            _finish(os.path.join(drafted, file.name), file)


def _fetch_piece(
    sources: Mapping[int, Source], drafted: str, sums: Sums | None, transfer: Transfer, span: Span
) -> int:
    file, (offset, length) = transfer.file, span
    source = sources[transfer.source]
    view = memoryview(source.read(file.name, transfer.kept, file.identity, offset, length))
    if len(view) != length:
        raise OSError(errno.EBADMSG, "another node has sent a wrong number of bytes", file.name)
    if sums is not None:
        sums[file.name, span] = checksum(view)
    fd = os.open(os.path.join(drafted, file.name), os.O_WRONLY | os.O_CLOEXEC)
    try:
        while view:
            written = os.pwrite(fd, view, offset)
            view, offset = view[written:], offset + written
    finally:
        os.close(fd)
    return length


def place_all(files: Sequence[StagedFile], drafted: str, root: str) -> None:
    """Move what is in a draft to its final names below `root`, one after the other."""
    for each in files:
        refuse_links(root, each.name)
        final = os.path.join(root, each.name)
        if not each.is_folder:
            place(os.path.join(drafted, each.name), final)
        elif not os.path.isdir(final) or os.path.islink(final):
            place(tempfile.mkdtemp(dir=drafted), final)
    for each in reversed([each for each in files if each.is_folder]):
        _finish(os.path.join(root, each.name), each)


def _finish(path: str, file: StagedFile) -> None:
    if not file.is_link:
        os.chmod(path, file.mode & 0o777)
    os.utime(path, ns=(file.time, file.time), follow_symlinks=False)


def pieces(transfer: Transfer) -> Iterable[Span]:
    """Return the spans of a whole file."""
    return _begin(transfer.file.size)


def _begin(size: int) -> Iterable[Span]:
    return ((start, min(PIECE, size - start)) for start in range(0, size, PIECE))


def fetch_ends(
    transfers: Sequence[Transfer], sources: Mapping[int, Source], root: str, stage: str
) -> None:
    """Make skeletons of other nodes' files below `root`: files of the same size, mode and time,
    but of a large file only what the search reads: the two ends in most formats. Each has another
    inode than what was there. `root` lies in the directory HASH of `stage`
    (`stage_directory.py`). Raises OSError and GivenUpError.
    """

    def read_by_search(each: Transfer) -> Iterable[Span]:
        file, begin = each.file, END
        is_whole = file.name.endswith(READ_WHOLE) and file.size <= LARGEST
        if is_whole or file.size <= 2 * END:
            return pieces(each)
        if file.name.endswith(SUFFIX):
            length = sources[each.source].read(file.name, each.kept, file.identity, 0, LENGTH)
            header = LENGTH + int.from_bytes(length, "little")
            begin = max(END, min(header, file.size, LARGEST))
        return (*_begin(begin), (file.size - END, END))

    with draft_beside(stage) as drafted:
        receive(transfers, sources, drafted, at_once, read_by_search)
        place_all([each.file for each in transfers], drafted, root)


def safe(name: str) -> str:
    """Return a relative name. Raises PermissionError if it leaves the directory."""
    is_path = name == os.path.normpath(name) and not os.path.isabs(name) and "\0" not in name
    if not is_path or name.split(os.sep)[0] in (os.curdir, os.pardir):
        raise PermissionError(errno.EPERM, "not a name in the staging directory", name)
    return name


def refuse_links(root: str, name: str) -> None:
    """Raise PermissionError if a name leads through a link, which may leave the directory."""
    parent = os.path.dirname(os.path.join(os.path.realpath(root), safe(name)))
    if os.path.realpath(parent) != parent:
        raise PermissionError(errno.EPERM, "a name that leads through a link", name)
