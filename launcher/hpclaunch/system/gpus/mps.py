"""MPS on this node, and the agent's client of the MPS keeper (`worker/mps_keeper.py`)."""

from __future__ import annotations

import fcntl
import functools
import json
import os
import re
import shutil
import stat
import tempfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ...core.placement.mps_shares import CONTROL, PIPES, Group, MpsSupport
from ...core.protocol.process_kinds import ProcessKind
from ...core.protocol.values import replace
from ...worker import mps_messages as messages
from ...worker.messages import decode
from ...worker.mps_messages import EVENTS, Event
from ..shared.errands import AskMps
from ..shared.helper import Helper, numbers
from . import foreign_mps

CLOSE_LIMIT = 30.0  # seconds until all daemons have ended; usually it is less than one
FIRST_LOOK = 1.0  # seconds
DEFAULT_PIPES = "/tmp/nvidia-mps"  # noqa: S108 where CUDA looks by itself
LONGEST_NAME = 20  # so that the paths of sockets below /tmp are never too long


def find(environ: Mapping[str, str]) -> MpsSupport:
    """Return the MPS support of this node. This waits for a daemon that is not ours."""
    here, pipes = installed(environ)
    if not pipes:
        return here
    answer = foreign_mps.ask(AskMps(here.control, pipes))
    return replace(here, foreign=answer.foreign, refused=answer.refused)


def installed(environ: Mapping[str, str]) -> tuple[MpsSupport, str]:
    """Return the MPS support of this node, and the pipe directory of a daemon that is not ours; ""
    if there is none. `foreign_mps.ask` finds out whether that daemon can be used.
    """
    control = _path_of_control(environ.get("PATH"))
    pipes = environ.get(PIPES) or DEFAULT_PIPES
    is_there = control and _is_socket(f"{pipes}/control")
    return MpsSupport(control), pipes if is_there else ""


@functools.cache
def _path_of_control(path: str | None) -> str:
    """Look for MPS only once, since a file system in PATH may stall later."""
    return shutil.which(CONTROL, path=path) or ""


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:
        return False


def stale(environ: Mapping[str, str]) -> bool:
    """Return whether a killed keeper has left files on this node, which a new one removes."""
    return any(
        _abandoned(path) for place in _places(environ) for path in Path(place).glob(f"{_prefix()}*")
    )


def _abandoned(path: Path) -> bool:
    try:
        if path.is_symlink() or path.stat().st_uid != os.geteuid():
            return False
        with (path / "lock").open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return path.exists()
    except OSError:  # a keeper holds it
        return False
    return True


def _places(environ: Mapping[str, str]) -> list[str]:
    """Return where the directories of a job may be; the same for all agents of a node."""
    first = environ.get("SLURM_TMPDIR") or tempfile.gettempdir()
    return list(dict.fromkeys((os.path.abspath(first), "/tmp", "/dev/shm")))  # noqa: S108 made safely


def _prefix() -> str:
    return f"hpclaunch-mps-{os.geteuid()}-"


def _short(name: str) -> str:
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", name)
    if len(plain) <= LONGEST_NAME and plain == name:
        return name
    return f"{plain[: LONGEST_NAME - 9]}-{zlib.crc32(os.fsencode(name)):08x}"


class MpsKeeperClient(Helper):
    """A client that sends requests and returns events. The daemons die with the keeper."""

    has_children = True
    kind = ProcessKind.MPS

    def __init__(
        self, job: str, control: str, handled: Iterable[int] = (), *, first_look: float = FIRST_LOOK
    ) -> None:
        """`job` is the same for all agents of the job on this node and for no other job of this
        user; `handled` are signals beyond the usual ones on which the agent acts.
        """
        self._again = (job, control, tuple(handled), first_look)
        where = (json.dumps(_places(os.environ)), _prefix(), _short(job))
        words = (numbers(self._again[2]), control, *where, str(first_look))
        super().__init__("hpclaunch.worker.mps_keeper", *words)

    def successor(self) -> MpsKeeperClient:
        job, control, handled, first_look = self._again
        return MpsKeeperClient(job, control, handled, first_look=first_look)

    def hear(self) -> list[Event]:
        """Return the events that have arrived. Call this when the descriptor is readable."""
        return [decode(EVENTS, raw) for raw in self.receive()]

    def prepare(self, number: int, groups: Sequence[Group], foreign: str = "") -> None:
        """Prepare all daemons for a round. Answered by Ready, Failed or Occupied, with its number.

        No worker of an earlier round may be left on this node.
        """
        described = [messages.Group(group.uuids, group.owned) for group in groups]
        self.send(messages.Prepare(number, described, foreign))

    def watch(self, workers: Mapping[int, int]) -> None:
        """Watch the workers, which should be clients: pids by rank. Each leads a session."""
        self.send(messages.Watch({**workers}))

    def close(self) -> None:
        """End every daemon that the keeper has started. Call this when the workers are gone."""
        self.end(CLOSE_LIMIT)
