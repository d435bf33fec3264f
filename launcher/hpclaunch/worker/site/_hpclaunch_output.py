"""Standard output and error of a worker that keep working while their files cannot grow.

A full disk, a quota, or a file server that is gone must not end a training because a script prints.
Lost bytes are counted, and a line reports their number once the file can be written again. This
applies only to the worker's own files: with others, a script gets the error.
"""

import io
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is not imported here
    from typing import Any

# EIO, EFBIG, ENOSPC, EROFS, ESTALE, EDQUOT, without importing `errno`, which a script could notice.
FULL = {5, 27, 28, 30, 116, 122}
STREAMS = (("stdout", 1), ("stderr", 2))
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"  # the worker's output files are beside this one
ENDS = ".error.json"


class FileIO(io.FileIO):
    __module__ = io.FileIO.__module__
    _lost = 0  # bytes lost since the last successful write
    _why = ""

    def write(self, data: "Any") -> int:
        left = memoryview(data).cast("B")
        size = len(left)
        try:
            if self._lost:
                note = f"\nhpclaunch: {self._lost} bytes are lost here: {self._why}\n".encode()
                if _write(self, note) == len(note):
                    self._lost = 0
            written = _write(self, left)
            while written is not None and written < len(left):  # the disk may be full by now
                left = left[written:]
                written = _write(self, left)
        except OSError as e:
            if e.errno not in FULL:
                raise
            self._lost += len(left)
            self._why = e.strerror or str(e)
        return size


_write = io.FileIO.write


def keep_writing() -> None:
    """Replace the streams of this process that write to its worker's files."""
    path = os.environ.get(ERROR_FILE, "")
    if not path.endswith(ENDS):
        return
    # /proc shows the names of open files without symbolic links.
    files = [os.path.realpath(path[: -len(ENDS)] + ends) for ends in (".out", ".err")]
    for name, fd in STREAMS:
        stream = getattr(sys, name)
        try:
            if os.readlink(f"/proc/self/fd/{fd}") in files:
                setattr(sys, name, like(stream, fd))
                setattr(sys, f"__{name}__", getattr(sys, name))
        except (OSError, AttributeError):
            pass  # closed, or replaced by the script


def like(stream: "Any", fd: int) -> io.TextIOWrapper:
    stream.flush()
    raw = FileIO(fd, "wb", closefd=False)
    raw.name = stream.name
    text = io.TextIOWrapper(
        raw if type(stream.buffer) is io.FileIO else io.BufferedWriter(raw),
        stream.encoding,
        stream.errors,
        "\n",
        stream.line_buffering,
        write_through=stream.write_through,
    )
    text.mode = stream.mode  # type: ignore[misc]
    return text
