"""What this node has of MPS, and the agent's client of its MPS keeper.

The keeper, and the protocol, are in `worker/mps_keeper.py`.
"""

from __future__ import annotations

import fcntl
import json
import os
import pwd
import re
import shutil
import stat
import subprocess
import tempfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ...core.placement.mps_shares import CONTROL, PIPES, Group, MpsSupport
from ..shared.helper import Helper, numbers

ANSWER_LIMIT = 3.0  # seconds for an answer of a daemon that is not ours
CLOSE_LIMIT = 30.0  # seconds until all daemons have ended; usually it is less than one
UVM = "/dev/nvidia-uvm"  # a process that uses CUDA has it open
FIRST_LOOK = 1.0  # seconds
DEFAULT_PIPES = "/tmp/nvidia-mps"  # noqa: S108 where CUDA looks by itself
LONGEST_NAME = 20  # so that the paths of sockets below /tmp are never too long


def find(environ: Mapping[str, str], cuda: tuple[int, int]) -> MpsSupport:
    """What this node has of MPS; `cuda` is the driver's version of it, from NVML."""
    control = shutil.which(CONTROL, path=environ.get("PATH")) or ""
    pipes = environ.get(PIPES) or DEFAULT_PIPES
    foreign = pipes if control and _trusted(f"{pipes}/control") and _answers(control, pipes) else ""
    return MpsSupport(control, foreign, cuda)


def _trusted(path: str) -> bool:
    """A stranger's daemon could give the workers whatever it likes."""
    try:
        found = os.stat(path)
    except OSError:
        return False
    return stat.S_ISSOCK(found.st_mode) and found.st_uid in (0, os.geteuid())


def _answers(control: str, pipes: str) -> bool:
    try:
        asked = subprocess.run(
            [control], input=b"get_server_list\n", env={**os.environ, PIPES: pipes},
            capture_output=True, timeout=ANSWER_LIMIT, check=False,
        )  # fmt: skip
    except (subprocess.TimeoutExpired, OSError):
        return False
    return asked.returncode == 0


def stale(environ: Mapping[str, str]) -> bool:
    """Whether a keeper that was killed has left something on this node: a new one sweeps it."""
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
    """Where the directories of a job may be; the same for all agents of a node."""
    first = environ.get("SLURM_TMPDIR") or tempfile.gettempdir()
    return list(dict.fromkeys((os.path.abspath(first), "/tmp")))  # noqa: S108 made safely


def _prefix() -> str:
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # this node does not know the account
        user = str(os.geteuid())
    return f"hpclaunch-mps-{_short(user)}-"


def _short(name: str) -> str:
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", name)
    if len(plain) <= LONGEST_NAME and plain == name:
        return name
    return f"{plain[: LONGEST_NAME - 9]}-{zlib.crc32(os.fsencode(name)):08x}"


class MpsKeeperClient(Helper):
    """Once the keeper is lost, its daemons are gone too."""

    has_children = True

    def __init__(
        self,
        job: str,
        control: str,
        handled: Iterable[int] = (),
        *,
        device: str = UVM,
        first_look: float = FIRST_LOOK,
    ) -> None:
        """`job` is the same for all agents of the job on this node and for no other job of this
        user; `handled` are signals beyond the usual ones on which the agent acts.
        """
        self._again = (job, control, tuple(handled), device, first_look)
        where = (json.dumps(_places(os.environ)), _prefix(), _short(job))
        words = (numbers(self._again[2]), control, *where, device, str(first_look))
        super().__init__("hpclaunch.worker.mps_keeper", *words)

    def successor(self) -> MpsKeeperClient:
        job, control, handled, device, first_look = self._again
        return MpsKeeperClient(job, control, handled, device=device, first_look=first_look)

    def prepare(self, number: int, groups: Sequence[Group], foreign: str = "") -> None:
        """Have all daemons fit for a round: answered by "ready" or "failed" with its number.

        No worker of an earlier round may be left on this node.
        """
        described = [{"uuids": group.uuids, "owned": group.owned} for group in groups]
        self.ask(op="prepare", number=number, groups=described, foreign=foreign)

    def watch(self, workers: Mapping[int, int]) -> None:
        """The pids, by rank, of workers that should be clients; each leads its session."""
        self.ask(op="watch", workers=workers)

    def close(self) -> None:
        """The end of every daemon that it has started; call it when the workers are gone."""
        self.end(CLOSE_LIMIT)
