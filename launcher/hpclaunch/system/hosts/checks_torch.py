"""The doctor's check of the workers' torch, which is imported in a process of its own."""

from __future__ import annotations

import contextlib
import subprocess

import msgspec

from hpclaunch.core.health.findings import Finding, Grade
from hpclaunch.core.protocol.values import value

OLDEST = (2, 4)
KILL_LIMIT = 1.0  # seconds until a killed process has ended
# The beginning of a program for `python -c`: others may write in the working directory, so nothing
# is imported from there.
WITHOUT_CWD = "import sys; sys.path = [*filter(None, sys.path)]\n"
_QUESTION = """
import json, platform
import torch
from torch import distributed
there = distributed.is_available()
nccl = there and distributed.is_nccl_available()
gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
print()
print(json.dumps({
    "python": platform.python_version(), "version": torch.__version__,
    "cuda": torch.version.cuda or torch.version.hip or "", "gpus": gpus, "distributed": there,
    "nccl": ".".join(map(str, torch.cuda.nccl.version())) if nccl else "",
}))
"""


@value(frozen=True)
class Torch:
    python: str
    version: str
    cuda: str  # "" for a build for CPUs only
    gpus: int
    distributed: bool
    nccl: str  # its version; "" if torch has none


class Question:
    """A process that imports torch while other checks run. `answer` waits for it."""

    def __init__(self, python: str) -> None:
        """Start the process. Raises OSError if there is no such interpreter."""
        self.python = python
        self._process = subprocess.Popen(
            [python, "-c", WITHOUT_CWD + _QUESTION],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )

    def answer(self, limit: float) -> tuple[Finding, Torch | None]:
        process = self._process
        try:
            out, err = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # a file system may hold it
                process.communicate(timeout=KILL_LIMIT)
            return self._slow(limit), None
        try:
            torch = msgspec.json.decode(out.strip().rpartition("\n")[2], type=Torch)
        except msgspec.MsgspecError:
            return self._none(err, process.returncode), None
        return _judge(torch, self.python), torch

    def _slow(self, limit: float) -> Finding:
        found = f"{self.python} has not imported it within {limit:.0f} s"
        advice = (
            "every worker waits as long: keep the environment on a faster file system, or give "
            "more --timeout"
        )
        return Finding("torch", found, Grade.WARN, advice)

    def _none(self, err: str, code: int) -> Finding:
        last = next((x for x in reversed(err.splitlines()) if x.strip()), f"exit code {code}")
        advice = (
            "activate the environment with your torch before srun and install hpclaunch there, or "
            "set PYTHON_EXEC to its interpreter"
        )
        return Finding("torch", f"{self.python}: {last.strip()}", Grade.FAIL, advice)


def _judge(torch: Torch, python: str) -> Finding:
    built = f"CUDA {torch.cuda}, NCCL {torch.nccl or 'none'}" if torch.cuda else "for CPUs only"
    found = f"{torch.version}, {built}, in Python {torch.python} ({python})"
    if not torch.distributed:
        advice = "install a build of torch with torch.distributed"
        return Finding("torch", f"{found}, without torch.distributed", Grade.FAIL, advice)
    if _number(torch.version) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        return Finding("torch", found, Grade.WARN, f"hpclaunch is meant for {oldest} and later")
    return Finding("torch", found)


def _number(version: str) -> tuple[int, ...]:
    """Return the first two numbers of a version: (2, 13) for 2.13.0+cpu."""
    return tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
