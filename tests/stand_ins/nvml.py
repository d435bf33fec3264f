"""Stand-in for NVML without a driver: `nvml.c` as libnvidia-ml.so.1, and the GPUs that it reports.

driver = Driver(directory, [Gpu(), Gpu()])
subprocess.run([...], env=driver.environ)     # the real pynvml finds it there
driver.gpus[1].error = LOST
driver.apply()                                # the library now reports the error
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from hpclaunch.system.gpus.inventory import GpuSurvey
from surroundings import environment

SOURCE = Path(__file__).with_suffix(".c")
GIB = 1 << 30

UNSUPPORTED = 3
HIDDEN = 4  # NVML_ERROR_NO_PERMISSION: hidden by a cgroup
LOST = 15
UNKNOWN = 999

POWER_CAP, THERMAL_SW, THERMAL_HW, POWER_BRAKE = 0x04, 0x20, 0x40, 0x80


@functools.cache
def library() -> Path:
    """Build the library once per test run; return its directory. Skip without a compiler."""
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "g++", "clang"))), None)
    if compiler is None:
        pytest.skip("no C compiler for the stand-in of NVML")
    directory = Path(tempfile.mkdtemp(prefix="stand-in-nvml-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    made = directory / "libnvidia-ml.so.1"
    options = ["-x", "c", "-std=gnu11", "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1"]
    subprocess.run([compiler, *options, "-o", str(made), str(SOURCE)], check=True)
    return directory


@dataclass
class Instance:
    """An instance of a GPU, with MIG."""

    uuid: str
    gi: int = 1
    ci: int = 0


@dataclass
class Process:
    pid: int
    memory: int
    instance: int = -1
    mps: bool = False  # a client of MPS


@dataclass
class Link:
    up: bool = True
    replays: int = 0
    recoveries: int = 0
    error: int = 0  # returned by calls about this link


@dataclass
class Gpu:
    """A GPU; None means that it, or its driver, does not report a value."""

    uuid: str = ""
    name: str = "NVIDIA H100 80GB HBM3"
    bus: str = ""
    mode: int = 0
    capability: tuple[int, int] = (9, 0)
    cpus: tuple[int, ...] = ()
    node: int | None = None
    used: int = 0
    total: int = 80 * GIB
    reserved: int = GIB // 2
    processes: list[Process] = field(default_factory=list)
    ecc: int | None = 0
    retired: bool | None = None
    rows: tuple[bool, bool] | None = (False, False)  # pending, failed
    throttle: int = 0
    temperature: int = 40
    links: list[Link] = field(default_factory=list)
    recovery: int | None = 0
    mig: bool = False
    instances: list[Instance] = field(default_factory=list)
    error: int = 0  # returned by every call
    fails: dict[str, int] = field(default_factory=dict)  # errors that single functions return
    hang: bool = False

    def lines(self, index: int) -> list[str]:
        maybe = {"node": self.node, "ecc": self.ecc, "recovery": self.recovery}
        if self.retired is not None:
            maybe["retired"] = int(self.retired)
        if self.error:
            maybe["error"] = self.error
        rows = [] if self.rows is None else [f"rows {self.rows[0]:d} {self.rows[1]:d}"]
        return [
            f"gpu {self.uuid or uuid(index)}",
            f"name {self.name}",
            f"bus {self.bus or f'00000000:{0x10 + index:02X}:00.0'}",
            f"mode {self.mode}",
            f"capability {self.capability[0]} {self.capability[1]}",
            f"cpus {' '.join(map(str, self.cpus))}",
            f"memory {self.used} {self.total} {self.reserved}",
            f"throttle {self.throttle}",
            f"temperature {self.temperature}",
            f"mig {self.mig:d}",
            *(f"{key} {value}" for key, value in maybe.items() if value is not None),
            *rows,
            *(f"process {p.pid} {p.memory} {p.instance} {p.mps:d}" for p in self.processes),
            *(f"link {li.up:d} {li.replays} {li.recoveries} {li.error}" for li in self.links),
            *(f"instance {i.uuid} {i.gi} {i.ci}" for i in self.instances),
            *(f"fails {function} {code}" for function, code in self.fails.items()),
            *(["hang"] if self.hang else []),
        ]


def uuid(index: int) -> str:
    return f"GPU-{index:08x}-1111-2222-3333-444444444444"


@dataclass
class Driver:
    """The state of the stand-in library, in a file that it reads at each call."""

    directory: Path
    gpus: list[Gpu] = field(default_factory=list)
    version: str = "550.54.15"
    init: int = 0  # what nvmlInit returns
    hang: bool = False  # nvmlInit does not return
    fails: dict[str, int] = field(default_factory=dict)  # the errors of functions without a GPU
    xids: list[tuple[int, int]] = field(default_factory=list)  # (GPU, number), as they happen

    def __post_init__(self) -> None:
        self.apply()

    @property
    def environ(self) -> dict[str, str]:
        """The environment for a process that uses the stand-in."""
        more = f":{before}" if (before := os.environ.get("LD_LIBRARY_PATH")) else ""
        return environment(LD_LIBRARY_PATH=f"{library()}{more}", HPCLAUNCH_STAND_IN_NVML=self.state)

    @property
    def state(self) -> Path:
        return self.directory / "nvml-state"

    def apply(self) -> None:
        """Write the state atomically; the library reads it at its next call."""
        lines = [f"driver {self.version}", f"init {self.init}"]
        lines += ["hang"] if self.hang else []
        lines += [f"xid {gpu} {number}" for gpu, number in self.xids]
        lines += [f"fails {function} {code}" for function, code in self.fails.items()]
        for index, gpu in enumerate(self.gpus):
            lines += gpu.lines(index)
        draft = self.state.with_suffix(".new")
        draft.write_text("\n".join(lines) + "\n")
        draft.replace(self.state)

    def xid(self, gpu: int, number: int) -> None:
        self.xids.append((gpu, number))
        self.apply()


class Surveyor:
    """A process that runs `inventory.survey` with the NVML, real or not, of its `environ`."""

    PROGRAM = (
        "import json, sys, msgspec, pynvml\n"
        "from hpclaunch.system.gpus import inventory\n"
        "for line in sys.stdin:\n"
        "    found = inventory.survey(json.loads(line), pynvml)\n"
        "    print(json.dumps(msgspec.to_builtins(found)), flush=True)\n"
    )

    def __init__(self, environ: dict[str, str]) -> None:
        command = [sys.executable, "-c", self.PROGRAM]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, env=environ, stdin=pipe, stdout=pipe, text=True)

    def survey(self, selection: str | None = None) -> GpuSurvey:
        environ = {} if selection is None else {"CUDA_VISIBLE_DEVICES": selection}
        print(json.dumps(environ), file=self.process.stdin, flush=True)
        return msgspec.convert(json.loads(self.process.stdout.readline()), GpuSurvey)

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()
