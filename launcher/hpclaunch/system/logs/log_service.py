"""The process that reads and writes an agent's log files, and shows them to the user.

A log directory on a shared file system may stall for any time: only this process waits for it. It
also shows the agent's messages, after all earlier output of the workers. A slow console delays
neither the agent nor the workers.

`messages.py` defines the requests. When the agent has exited or was killed, this process shows the
remaining output and exits.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import select
import time
from collections.abc import Collection, Iterable
from pathlib import Path

from hpclaunch.core.protocol.wording import for_console
from hpclaunch.system.shared import disk, open_file_limit
from hpclaunch.worker import private_files
from hpclaunch.worker.json_lines import AgentChannel, AgentGoneError
from hpclaunch.worker.messages import decode, never

from . import messages
from .console import consoles
from .error_file import hand_on, with_beginning
from .index_writer import IndexWriter
from .log_directory import close_written, size, tail
from .mirror import PARTIAL, Duplicates, Mirror, Tap

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE}
ROOM = 5.0  # seconds between two checks for a full file system
STALLED = 10.0  # seconds to wait at the end for a console that accepts nothing


class LogService:
    def __init__(self, channel: AgentChannel) -> None:
        self._channel = channel
        self.mirror = Mirror()
        self.consoles = consoles()
        self._duplicates: dict[str, Duplicates] = {}  # by path, while lines are copied to them
        self._begins: dict[Path, int] = {}  # the sizes of the round's files at its start
        self._prepared = 0  # the id of the round's request
        self._directory = ""  # of the round
        self._room_at = math.inf  # when to check whether its disk is full
        self._full = False  # the disk was full at the last check
        self._index: IndexWriter | None = None  # of the round
        self._appended: dict[Path, int] = {}  # open descriptors, for requests to append
        self._lost: dict[Path, int] = {}  # how many lines could not be appended, by file
        self._unwritten: dict[str, str] = {}  # reasons for failed writes, until they succeed

    def run(self) -> None:
        """Serve requests until the agent is gone."""
        try:
            while True:
                ready = self._wait()
                if self._channel.fileno() in ready:
                    for request in self._channel.read():
                        self.serve(decode(messages.REQUESTS, request))
                for console in self.consoles.values():
                    if console.fd in ready:
                        console.flush()
                now = time.monotonic()
                self.mirror.wake(now)
                index = self._index
                if index and (index.fileno() in ready or now >= index.next_deadline()):
                    index.wake(now)
                if now >= self._room_at:
                    self._room_at = now + ROOM
                    self._look_for_room()
                self._complain_of_duplicates()
                self.consoles[2].draw()
        except AgentGoneError:
            self.drain()

    def _wait(self) -> set[int]:
        """Wait for a descriptor or a deadline, and return the descriptors that are ready."""
        poll = select.poll()
        index = self._index
        followers = [self.mirror.fileno(), -1 if index is None else index.fileno()]
        for fd in (self._channel.fileno(), *followers):
            if fd >= 0:
                poll.register(fd, select.POLLIN)
        for console in self.consoles.values():
            if console.wanting:
                poll.register(console.fd, select.POLLOUT)
        deadlines = [self.mirror.next_deadline(), self._room_at]
        deadlines += [] if index is None else [index.next_deadline()]
        left = min(deadlines) - time.monotonic()
        return {fd for fd, _ in poll.poll(None if left > 1e6 else 1000 * max(0.0, left) + 1)}

    # Requests

    def serve(self, request: messages.Request) -> None:
        match request:
            case messages.Prepare():
                self._reply(self._prepare(request))
            case messages.ReadTail(id=number, files=files):
                self._reply(messages.Tail(number, self._tail(files)))
            case messages.LookAtDisk(id=number, directory=directory):
                self._reply(messages.DiskFound(number, disk.look(Path(directory))))
            case messages.Keep(directory=directory, files=texts):
                self._keep(directory, texts)
            case messages.Append(directory=directory, name=name, text=text):
                self._append(directory, name, text)
            case messages.ReadFacts(directory=directory, launch=launch, kinds=kinds):
                self._read_facts(directory, launch, kinds)
            case messages.HandOnError(files=files, wanted=wanted):
                hand_on(files, wanted)
            case messages.Say(text=text):
                self._say(text)
            case messages.Live(text=text):
                self.consoles[2].set_live(for_console(text))
            case messages.Remove(file=file):
                with contextlib.suppress(OSError):
                    os.unlink(file)
            case messages.Finish():
                self._finish()
            case _:
                never(request)

    def _reply(self, reply: messages.Reply) -> None:
        self._channel.send(reply.encoded())

    def _report(self, reply: messages.Complaint | messages.Lost) -> None:
        with contextlib.suppress(AgentGoneError):  # the remaining output is still shown
            self._reply(reply)

    def _complain(self, kind: str, what: str, why: str = "") -> None:
        self._report(messages.Complaint(kind, what, why))

    def _prepare(self, request: messages.Prepare) -> messages.Reply:
        try:
            if request.id != self._prepared:  # a process that replaces another may receive it twice
                self.follow(request)
        except OSError as e:
            why, file = e.strerror or str(e), os.fsdecode(e.filename or request.directory)
            return messages.Refused(request.id, why, file, e.errno in FULL)
        self._prepared = request.id
        return messages.Prepared(request.id)

    def follow(self, request: messages.Prepare) -> None:
        """Make a round's directory and files, and show new output in them. Raises OSError."""
        directory, streams = request.directory, request.streams
        above = Path(directory).parent
        if above.exists():
            private_files.check_directory(above)
        private_files.make_directory(directory)
        if _is_full(directory):  # the files could be made, but nothing be written to them
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), directory)
        for error in request.errors:  # left by an earlier launch, not by a worker of this round
            Path(error).unlink(missing_ok=True)
        open_file_limit.raise_to(2 * len(streams))  # the previous round's may still be open
        files = [Path(stream.path) for stream in streams] + [Path(request.store)]
        self._begins = {file: size(file) for file in files}
        self.mirror.forget()
        self._release()
        self._directory, self._room_at = directory, time.monotonic() + ROOM
        self._duplicates |= {path: Duplicates(Path(path)) for path in request.duplicates}
        for stream in streams:
            self.mirror.follow(stream.path, *map(self._tap, stream.taps))
        if self._index is not None:
            self._index.close()
        index = Path(request.index)
        self._index = IndexWriter(index, launch=request.launch, host=request.host)
        for stream in streams:
            self._index.follow(Path(stream.path), time.monotonic())

    def _tap(self, tap: messages.TapTo) -> Tap:
        sink = self.consoles[tap.to] if isinstance(tap.to, int) else self._duplicates[tap.to]
        patience = 0.0 if tap.at_once else PARTIAL
        needles = tuple(map(os.fsencode, tap.needles))
        return Tap(sink, os.fsencode(tap.prefix), needles, patience)

    def _tail(self, files: Iterable[str]) -> str:
        """Return the last lines of the first file that has any."""
        for path in map(Path, files):
            # A file that this launch has not opened was left by an earlier one.
            if path in self._begins and (text := tail(path, self._begins[path])):
                return with_beginning(text, path)
        return ""

    def _keep(self, directory: str, files: dict[str, str]) -> None:
        try:
            private_files.make_directory(directory)
            for name, text in files.items():
                _replace(Path(directory) / name, text.encode(errors="surrogateescape"))
            self._unwritten.pop(f"{directory}/{', '.join(files)}", None)
        except OSError as e:
            self._complain_of_files(e, directory, ", ".join(files))

    def _append(self, directory: str, name: str, text: str) -> None:
        """Append whole lines to a file, which stays open until a write fails. Report the number of
        lost lines once it can be written again.
        """
        path, data = Path(directory) / name, text.encode(errors="surrogateescape")
        try:
            if path not in self._appended:
                self._appended[path] = _open_to_append(path)
            while data:  # a nearly full disk accepts a part, and the next write fails
                data = data[os.write(self._appended[path], data) :]
            self._unwritten.pop(str(path), None)
            if lost := self._lost.pop(path, 0):
                self._report(messages.Lost(name, lost))
        except OSError as e:
            self._lost[path] = self._lost.get(path, 0) + data.count(b"\n")
            self._stop_appending(path)
            self._complain_of_files(e, directory, name)

    def _stop_appending(self, path: Path) -> None:
        if (fd := self._appended.pop(path, None)) is not None:
            close_written(fd)

    def _complain_of_files(self, error: OSError, directory: str, names: str) -> None:
        why = f"{error.strerror or error}: {error.filename or directory}"
        is_new = why not in self._unwritten.values()  # some files are written again and again
        self._unwritten[f"{directory}/{names}"] = why
        if is_new:
            self._complain("files", names, why)

    def _read_facts(self, directory: str, launch: str, kinds: Collection[str]) -> None:
        from . import fact_files  # needed only after a takeover

        with contextlib.suppress(OSError):
            self._reply(messages.Facts(fact_files.lines_of(Path(directory), launch, kinds)))

    def _say(self, text: str) -> None:
        """Show a message to the user, after all that the workers have written so far."""
        self.mirror.wake(time.monotonic())
        errors = self.consoles[2]
        # A worker that died may have left its last line unfinished.
        start = b"" if errors.at_line_start else b"\n"
        errors.say(start + for_console(f"hpclaunch: {text}\n"))

    def _finish(self) -> None:
        if self._index is not None:
            self._index.finish(time.monotonic())
        self.mirror.finish(time.monotonic())
        self._look_for_room()
        self._room_at = math.inf

    def _look_for_room(self) -> None:
        """Report a full disk once: workers do not notice it (`site/_hpclaunch_output.py`)."""
        full = _is_full(self._directory)
        if full and not self._full:
            self._complain("disk", self._directory)
        self._full = full

    # Duplicates

    def _release(self) -> None:
        """Close the duplicate files of completely shown rounds: each restart opens two more."""
        for path, duplicates in list(self._duplicates.items()):
            if not self.mirror.feeds(duplicates):
                duplicates.close()
                del self._duplicates[path]
                self._complain_of(path, duplicates)

    def _complain_of_duplicates(self) -> None:
        for path, duplicates in self._duplicates.items():
            self._complain_of(path, duplicates)

    def _complain_of(self, path: str, duplicates: Duplicates) -> None:
        """Report once that lines are no longer duplicated, and why."""
        if why := duplicates.complaint():
            self._complain("duplicates", path, why)

    # The end

    def drain(self) -> None:
        """Show the remaining output, until no console has accepted any for STALLED seconds."""
        self.consoles[2].set_live(b"")
        self.consoles[2].draw()
        if self._index is not None:
            self._index.finish(time.monotonic())
        self.mirror.finish(time.monotonic())
        until = time.monotonic() + STALLED
        while wanting := {each.fd: each for each in self.consoles.values() if each.wanting}:
            ready = select.select([], wanting, [], STALLED)[1]
            if [fd for fd in ready if wanting[fd].flush()]:
                until = time.monotonic() + STALLED
                with contextlib.suppress(AgentGoneError):
                    self._reply(messages.Draining())
            elif not ready or time.monotonic() >= until:  # one may be writable and accept nothing
                break
            self.mirror.finish(time.monotonic())
        self._complain_of_duplicates()

    def close(self) -> None:
        self.mirror.close()
        if self._index is not None:
            self._index.close()
        for duplicates in self._duplicates.values():
            duplicates.close()
        for path in list(self._appended):
            self._stop_appending(path)


def _is_full(directory: str) -> bool:
    try:
        found = os.statvfs(directory)
    except OSError:
        return False
    return found.f_bavail == 0 and found.f_blocks > 0


def _replace(file: Path, data: bytes) -> None:
    """Replace a file, so that nobody reads half of it. Raises OSError, and leaves the old one."""
    new = file.with_name(f"{file.name}.new")
    fd = private_files.open_file(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        with open(fd, "wb") as f:
            f.write(data)
        os.replace(new, file)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(new)
        raise


def _open_to_append(path: Path) -> int:
    """Open a file to append whole lines. If its last line was cut off, for example by a full disk,
    end that line first. Raises OSError.
    """
    private_files.make_directory(path.parent)
    fd = private_files.open_file(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    try:
        end = os.lseek(fd, 0, os.SEEK_END)
        if end > 0 and os.pread(fd, 1, end - 1) != b"\n":
            os.write(fd, b"\n")
    except OSError:
        os.close(fd)
        raise
    return fd


def main(fd: str, _blocked: str) -> None:
    service = LogService(AgentChannel(fd))
    try:
        service.run()
    finally:
        service.close()
