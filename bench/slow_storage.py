"""Slow storage: a FUSE file system with a limited rate, on which every call takes a while.

    python slow_storage.py DIRECTORY MOUNTPOINT [--rate 100] [--latency 20]

Reads and writes share the rate, and nothing is cached; they have no latency of their own, as if the
client read ahead. All other calls, fsync among them, take the latency, and then the data is as safe
as in the page cache. Needs root and /dev/fuse. It ends when unmounted.
"""

import argparse
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "stand_ins"))

MB = 10**6
SLACK = 0.02  # seconds; sleeps that are too long by so much do not lower the rate
LIMIT = 30.0  # seconds until a mount counts as failed


def why_not() -> str:
    """Return what is missing for such a file system, or ""."""
    if os.geteuid():
        return "root"
    return "" if Path("/dev/fuse").exists() else "FUSE in this kernel"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for the storage of a benchmark."""
    parser.add_argument("--rate", type=float, default=100, help="of the storage, MB per second")
    parser.add_argument("--latency", type=float, default=20, help="of the storage, milliseconds")


@contextmanager
def slow_storage(directory: Path, rate: float, latency: float) -> Iterator[Path]:
    """Yield a new directory on slow storage: `rate` in MB/s, `latency` in milliseconds.

    The files are in `directory`/source.
    """
    source, mountpoint = directory / "source", directory / "storage"
    source.mkdir()
    mountpoint.mkdir()
    options = [f"--rate={rate}", f"--latency={latency}"]
    server = subprocess.Popen([sys.executable, __file__, source, mountpoint, *options])
    try:
        until = time.monotonic() + LIMIT
        while not mountpoint.is_mount():
            if server.poll() is not None or time.monotonic() > until:
                raise RuntimeError("the slow storage is not mounted")
            time.sleep(0.02)
        yield mountpoint
    finally:
        subprocess.run(["umount", "--lazy", mountpoint], check=False)
        try:
            server.wait(LIMIT)
        except subprocess.TimeoutExpired:  # a file on it is still open
            server.kill()
            server.wait()


class Pace:
    """A rate that is shared by all threads."""

    def __init__(self, rate: float) -> None:
        self._rate = rate  # bytes per second
        self._lock = threading.Lock()
        self._free = 0.0  # when all that was requested so far is transferred

    def transfer(self, size: int) -> None:
        """Wait until so many bytes are transferred."""
        with self._lock:
            begins = max(self._free, time.monotonic() - SLACK)
            self._free = until = begins + size / self._rate
        time.sleep(max(0.0, until - time.monotonic()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory")
    parser.add_argument("mountpoint")
    add_options(parser)
    args = parser.parse_args()

    from passthrough import Passthrough

    pace, latency = Pace(args.rate * MB), args.latency / 1000

    class Slow(Passthrough):
        def delay(self, call: str, rest: tuple) -> None:
            match call, rest:
                case "read", (size, _, _):
                    pace.transfer(size)
                case "write", (data, _, _):
                    pace.transfer(len(data))
                case _:
                    time.sleep(latency)

        def fsync(self, *_: object) -> None:
            self.delay("fsync", ())

    Slow(os.path.abspath(args.directory)).mount(args.mountpoint, foreground=True)


if __name__ == "__main__":
    main()
