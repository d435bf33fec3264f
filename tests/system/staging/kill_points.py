"""Kill a stager before each of its operations on files, in turn, and compare every byte.

    python tests/system/staging/kill_points.py [SCRIPT...]

A script has saved step 1, which is on storage, and then step 2. The stager drains that, and is
killed: as after SIGKILL, none of its operations has any effect from then on. Whatever storage has
then has to be whole. The next stager has to finish the work and to leave nothing behind.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "checkpoints"), str(HERE.parents[2] / "launcher")]

from looking import newest  # noqa: E402
from saving_scripts import ROOT, SCRIPTS, digest, picture  # noqa: E402

from hpclaunch.system.staging import copying, messages, publishing  # noqa: E402
from hpclaunch.system.staging.launch import Launch  # noqa: E402
from hpclaunch.system.staging.service import Stager  # noqa: E402
from hpclaunch.worker.messages import decode  # noqa: E402

OPERATIONS = (
    "rename", "replace", "unlink", "rmdir", "mkdir", "symlink", "link", "pwrite", "utime",
    "fchmod", "fsync", "fdatasync",
)  # fmt: skip


class Channel:
    """The agent's side of a stager in the same process: it collects what is sent."""

    def __init__(self) -> None:
        self._silent, self._open = os.pipe()
        self.sent: list[messages.Reply] = []

    def fileno(self) -> int:
        return self._silent

    def send(self, reply: dict[str, str]) -> None:
        self.sent.append(decode(messages.REPLIES, reply))

    def close(self) -> None:
        os.close(self._silent)
        os.close(self._open)


def close(stager: Stager) -> None:
    # A call that ends later must not write to a file that gets this number.
    stager.requests.wake = lambda: None  # type: ignore[method-assign]
    os.close(stager.requests._waking)
    os.close(stager._lock)
    with contextlib.suppress(OSError):
        os.close(stager.others._opened)


class Node:
    """A node with a staging directory, and storage."""

    def __init__(self, scratch: Path, name: str = "ckpt") -> None:
        self.storage = scratch / "storage" / name
        self.stage = scratch / "memory" / name
        self._launch = os.urandom(4).hex()
        self.stage.mkdir(parents=True)
        self.storage.mkdir(parents=True)

    def stager(self, **more: str) -> Stager:
        settings = messages.Settings(str(self.storage), str(self.stage), self._launch, **more)
        self.channel = Channel()
        made = Stager(self.channel, Launch(settings))
        made.requests.is_hurried = True
        return made

    def close(self, stager: Stager) -> None:
        close(stager)
        self.channel.close()


class KilledError(BaseException):
    """The process is dead: nothing catches this."""


class Killer:
    """Raises KilledError before the n-th operation on files, and before all after it."""

    def __init__(self, at: int) -> None:
        self._left = at
        self._lock = threading.Lock()
        self._originals = {name: getattr(os, name) for name in OPERATIONS}
        self._exchange = publishing._rename_exchange
        self.has_killed = False

    def __enter__(self) -> Killer:
        for name, original in self._originals.items():
            setattr(os, name, self._wrapped(original))
        publishing._rename_exchange = self._wrapped(self._exchange)
        return self

    def __exit__(self, *_: object) -> bool:
        for name, original in self._originals.items():
            setattr(os, name, original)
        publishing._rename_exchange = self._exchange
        return self.has_killed

    def _wrapped(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **more: Any) -> Any:
            with self._lock:
                self._left -= 1
                if self._left < 0:
                    if original is self._originals["pwrite"] and not self.has_killed:
                        fd, data, offset = args
                        original(fd, data[: len(data) // 2], offset)
                    self.has_killed = True
                    raise KilledError
            return original(*args, **more)

        return wrapped


def kill_at(script: str, point: int, *, exchanges: bool = True) -> bool:
    """Kill the stager at this point. Raise AssertionError if anything is lost, torn or left. Return
    False if it was done before.
    """
    name = ROOT.get(script, "ckpt")
    with tempfile.TemporaryDirectory() as scratch:
        node = Node(Path(scratch), name)
        save = SCRIPTS[script]
        save(node.stage, 1)
        stager = node.stager()
        stager.work()
        old = picture(node.storage)
        assert old == picture(node.stage), "step 1 is not on storage"
        (node.stage / "log.txt").write_text("step 1\nstep 2\n")
        save(node.stage, 2)
        new = picture(node.stage)
        with Killer(point) as killer:
            if not exchanges:
                publishing._rename_exchange = _no_exchange
            stager.work()
        node.close(stager)
        check_whole(node.storage, old, new)
        stager = node.stager()
        stager.draining.sweep()
        check_whole(node.storage, old, new)
        stager.work()
        flushed = stager.flush(1)
        assert flushed == messages.Flushed(1, (), ""), flushed
        node.close(stager)
        now = picture(node.storage)
        assert now == new, f"there is {sorted(now)}, not {sorted(new)}"
        left = [p for p in node.storage.rglob("*") if "hpclaunch" in p.name]
        assert not left, f"left behind: {left}"
        assert not (node.stage.parent / "held").exists()
        return killer.has_killed


def kill_restore_at(script: str, point: int) -> bool:
    """Kill the stager while it restores, and let another one restore the same. Raise AssertionError
    if the copy in memory differs, or storage has changed. Return False if it was done before.
    """
    with tempfile.TemporaryDirectory() as scratch:
        node = Node(Path(scratch), ROOT.get(script, "ckpt"))
        SCRIPTS[script](node.storage, 1)
        (node.storage / "log.txt").write_text("step 1\n")
        old = picture(node.storage)
        stager = node.stager()
        with Killer(point) as killer:
            stager.restore(messages.Restore(1))
        node.close(stager)
        stager = node.stager()
        stager.draining.sweep()
        restored = stager.restore(messages.Restore(2))
        assert isinstance(restored, messages.Restored), restored
        assert restored.path, restored
        node.close(stager)
        assert picture(node.stage) == old
        assert picture(node.storage) == old
        return killer.has_killed


def _no_exchange(one: str, other: str) -> None:
    import errno

    raise OSError(errno.EINVAL, "no RENAME_EXCHANGE", other)


def check_whole(storage: Path, *versions: dict[str, str]) -> int:
    """Return which version a job would resume from. Raise AssertionError unless it is whole, byte
    by byte.
    """
    path, lines = newest(storage)
    assert path, f"nothing complete on storage: {sorted(picture(storage))}, {lines}"
    chosen = Path(path)
    found = picture(chosen) if chosen.is_dir() else {"": digest(chosen)}
    found = {n: data for n, data in found.items() if not n.startswith((".hpclaunch", "newest-by"))}
    key = str(chosen.relative_to(storage)).removesuffix(publishing.OLD)
    if key.startswith(publishing.NEWEST):
        key = "."
    found.pop("log.txt", None)
    matches = [_below(version, key) for version in versions]
    assert found in matches, f"{path} is none of those that were saved: {sorted(found)}"
    return max(i for i, match in enumerate(matches) if match == found)


def _below(version: dict[str, str], key: str) -> dict[str, str]:
    if key in version:
        return {"": version[key]}
    prefix = "" if key == "." else f"{key}/"
    found = {n.removeprefix(prefix): d for n, d in version.items() if n.startswith(prefix)}
    found.pop("log.txt", None)
    return found


def run(script: str, points: range, kill: Callable[[str, int], bool]) -> int:
    """Kill at each of these points, until the stager is done before. Return how many there were."""
    for number, point in enumerate(points):
        try:
            if not kill(script, point):
                return number
        except AssertionError as e:
            raise AssertionError(f"{script}, killed at {point}: {e}") from e
    return len(points)


KILLS: dict[str, Callable[[str, int], bool]] = {
    "drain": kill_at,
    "drain without RENAME_EXCHANGE": partial(kill_at, exchanges=False),
    "restore": kill_restore_at,
}


def main() -> int:
    copying.PIECE = 30_000
    failed = 0
    for script in sys.argv[1:] or SCRIPTS:
        for name, kill in KILLS.items():
            try:
                print(script, name, run(script, range(10**6), kill), "kills", flush=True)
            except AssertionError as e:
                failed += 1
                print(f"FAILED: {name}: {e}", flush=True)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
