"""Stand-in GPUs for the nodes of a cluster.

Slurm's GPUs are files; NVML and the control daemon of MPS are stand-ins (tests/stand_ins).
"""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import Any

import nvml
from nvml import Driver, Gpu

from .cluster import Cluster, Job, eventually
from .conftest import ROOT, SCRIPTS

STAND_INS = ROOT / "tests" / "stand_ins"
OF_MPS = r"nvidia-cuda-mps|hpclaunch\.worker\.mps"


class Gpus:
    """Jobs with `--gres=gpu:N`; by default, all their nodes have the same GPUs."""

    def __init__(self, cluster: Cluster, directory: Path, temporary: Path) -> None:
        self.cluster, self.directory, self.temporary = cluster, directory, temporary

    def driver(self, gpus: list[Gpu], host: str = "all") -> Driver:
        place = self.directory / f"driver-{host}"
        place.mkdir()
        driver = Driver(place, gpus)
        (self.directory / f"nvml.{host}").symlink_to(driver.state)
        return driver

    def launch(
        self, *args: object, gres: str = "gpu:2", srun: str = "", path: bool = True, **options: Any
    ) -> Job:
        """Submit a job; with `path`, the MPS control daemon is in PATH."""
        paths = filter(None, [str(STAND_INS), self.cluster.env.get("PYTHONPATH")])
        env = {
            "LD_LIBRARY_PATH": str(nvml.library()),
            "PYTHONPATH": os.pathsep.join(paths),
            "TMP_OF_TEST": str(self.temporary),
        }
        if path:
            env["PATH"] = f"{STAND_INS}:{self.cluster.env['PATH']}"
        if not (self.directory / "nvml.all").exists():
            self.driver([Gpu() for _ in range(int(gres[-1]))])
        command = f"srun {srun} {SCRIPTS}/gpus.sh {shlex.join(map(str, args))}"
        more = [f"--gres={gres}", *options.pop("options", ())]
        return self.cluster.sbatch(
            command, directory=self.directory, env=env, options=more, **options
        )

    def environments(self, number: int = 0) -> dict[int, dict[str, Any]]:
        """Return the environments of the workers of a round, by rank (see `scripts/client.py`)."""
        found = self.directory.glob(f"environ-*.{number}.json")
        return {int(p.stem[8:].partition(".")[0]): json.loads(p.read_text()) for p in found}

    def wait_for_workers(self, world: int, number: int = 0) -> list[dict[str, Any]]:
        eventually(f"{world} workers", lambda: len(self.environments(number)) == world)
        environments = self.environments(number)
        return [environments[rank] for rank in sorted(environments)]

    def go(self) -> None:
        (self.directory / "go").touch()

    def left(self) -> list[Path]:
        return [path for path in self.temporary.glob("*/*") if "mps" in path.name]
