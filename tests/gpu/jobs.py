"""Start hpclaunch as a user does, on one real GPU, and inspect that GPU meanwhile."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

import surroundings
from slurm.cluster import eventually

SCRIPTS = Path(__file__).parent / "scripts"
ROOT = Path(__file__).parent.parent.parent
HPCLAUNCH = Path(sys.executable).parent / "hpclaunch"
CONTROL = "nvidia-cuda-mps-control"
# Seconds: enough for eight starts of CUDA before torch's files are in the page cache.
LIMIT = float(os.environ.get("HPCLAUNCH_GPU_LIMIT", "150"))

WorkerState = Mapping[str, Any]  # see `scripts/computing.py`


def environment(**changes: str) -> dict[str, str]:
    return surroundings.environment(**{"CUDA_DEVICE_ORDER": "PCI_BUS_ID"} | changes)


@dataclass(frozen=True)
class Machine:
    """The first GPU of this machine, by NVML, which stays open, and what torch reports."""

    nvml: Any
    handle: Any
    uuid: str
    model: str
    torch: Mapping[str, Any]  # version, cuda, nccl, uuids; from another process

    def holders(self) -> set[int]:
        """Return the processes with a CUDA context on the GPU, as far as NVML names them."""
        ask = self.nvml.nvmlDeviceGetMPSComputeRunningProcesses
        clients = {p.pid for p in ask(self.handle)}
        return clients | {
            p.pid for p in self.nvml.nvmlDeviceGetComputeRunningProcesses(self.handle)
        }

    def used(self) -> float:
        """Return the used memory of the GPU, in MiB."""
        return self.nvml.nvmlDeviceGetMemoryInfo(self.handle).used / 2**20


class Job:
    """A job with `scripts/computing.py` in a directory of its own. The caller must call `end`."""

    def __init__(
        self, directory: Path, env: Mapping[str, str], options: Sequence[str], words: Sequence[str]
    ) -> None:
        self.directory = directory
        self._output = directory / "output"
        command = [HPCLAUNCH, "--log-dir", directory / "logs", *options, SCRIPTS / "computing.py"]
        with self._output.open("w") as output:
            self.launcher = subprocess.Popen(
                [*command, directory, *words],
                cwd=directory,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    @property
    def output(self) -> str:
        return self._output.read_text()

    def states(self, workers: int, *, restarts: int = 0) -> list[WorkerState]:
        """Wait for the states that all workers of a round have written; return them by rank."""
        paths = [self.directory / f"state-{restarts}-{rank}.json" for rank in range(workers)]

        def all_written() -> bool:
            assert self.launcher.poll() is None, f"the launcher has ended:\n{self.output}"
            return all(path.exists() for path in paths)

        self._eventually(f"{workers} workers after {restarts} restarts", all_written)
        return [json.loads(path.read_text()) for path in paths]

    def crash(self) -> None:
        (self.directory / "fault").touch()

    def go(self) -> int:
        """Let the workers end; return the exit code."""
        (self.directory / "go").touch()
        self._eventually("the job's end", lambda: self.launcher.poll() is not None)
        return self.launcher.returncode

    def family(self) -> set[int]:
        """Return the launcher and its descendants."""
        agent = psutil.Process(self.launcher.pid)
        return {agent.pid, *(p.pid for p in agent.children(recursive=True))}

    def journal(self) -> list[dict[str, Any]]:
        lines = (self.directory / "logs" / "journal.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def end(self) -> None:
        if self.launcher.poll() is None:
            self.launcher.send_signal(signal.SIGTERM)
            try:
                self.launcher.wait(60)
            except subprocess.TimeoutExpired:
                self.launcher.kill()
        self.launcher.wait()

    def _eventually(self, what: str, found: Any) -> None:
        try:
            eventually(what, found, LIMIT)
        except AssertionError as e:
            raise AssertionError(f"{e}\n{self.output}") from None


def devices(pid: int) -> set[str]:
    """Return NVIDIA's devices that a process has open, for CUDA or for NVML."""
    found: set[str] = set()
    with suppress(FileNotFoundError, ProcessLookupError):  # the process has ended
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # it was closed meanwhile
                found.add(os.readlink(fd))
    return {path for path in found if path.startswith("/dev/nvidia")}


class KernelLog:
    """The kernel's log from now on."""

    def __init__(self) -> None:
        self._fd = -1
        with suppress(OSError):  # it is not readable in most containers
            self._fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
            os.lseek(self._fd, 0, os.SEEK_END)

    def xids(self) -> list[str] | None:
        """Return the driver's lines about Xids, or None if the log is not readable."""
        found = []
        while self._fd >= 0:
            try:  # "priority,number,time,flags;text"
                _, _, text = os.read(self._fd, 1 << 13).decode(errors="replace").partition(";")
            except BlockingIOError:  # no further line
                os.close(self._fd)
                return found
            except BrokenPipeError:  # some were overwritten before they were read
                continue
            except OSError:
                break
            if "NVRM: Xid" in text:
                found.append(text.splitlines()[0])
        return None


# MPS


def control(pipe: str, command: str) -> str:
    """Return the answer of the daemon of a pipe directory."""
    logs = {"CUDA_MPS_PIPE_DIRECTORY": pipe, "CUDA_MPS_LOG_DIRECTORY": str(Path(pipe).parent)}
    done = subprocess.run(
        [CONTROL],
        input=f"{command}\n",
        env=environment(**logs),
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def servers(pipe: str) -> list[int]:
    return [int(word) for word in control(pipe, "get_server_list").split()]


def clients(pipe: str) -> set[int]:
    """Return the clients of the daemon's servers."""
    lists = [control(pipe, f"get_client_list {server}") for server in servers(pipe)]
    return {int(word) for words in lists for word in words.split()}


def mps_processes() -> set[int]:
    """Return all daemons and servers, of any user."""
    names = {p.pid: p.info["name"] or "" for p in psutil.process_iter(["name"])}
    return {pid for pid, name in names.items() if name.startswith("nvidia-cuda-mps")}


def mps_directories(temporary: Path) -> set[Path]:
    """Return hpclaunch's MPS directories, there or in /tmp, which is used if a path is too long."""
    return {path for place in (temporary, Path("/tmp")) for path in place.glob("hpclaunch-mps-*")}
