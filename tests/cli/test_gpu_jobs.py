"""Jobs on GPUs through the launcher: MPS comes and goes, and GPUs are watched.

NVML, the control daemon and CUDA's side of MPS are stand-ins (tests/stand_ins).
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import nvml
import psutil
import pytest
from launching import LIMIT, end, script, start, until, without_load
from nvml import LOST, Driver, Gpu
from test_metrics import scraped

from living import living
from surroundings import LIGHT_TORCH, SHORT, environment, free_port

pytestmark = pytest.mark.starts

STAND_INS = Path(nvml.__file__).parent
PYTHONPATH = f"{STAND_INS}:{LIGHT_TORCH}"
CLIENT = """\
import json, os, sys, time
import cuda_client
rank, number = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
report = {**os.environ, "client": cuda_client.connect(), "pid": os.getpid()}
with open("draft-" + rank, "w") as f:
    json.dump(report, f)
os.rename("draft-" + rank, f"told-{rank}.{number}.json")
while not os.path.exists("go"):
    time.sleep(0.02)
    report["client"] and cuda_client.synchronize()
"""


class Machine:
    def __init__(self, directory, temporary):
        self.directory, self.temporary = directory, temporary
        self.driver = Driver(directory, [Gpu()])
        self.process = None

    def launch(self, *words, **changes):
        more = {k: v for k, v in self.driver.environ.items() if "NVML" in k or k.startswith("LD_")}
        path = f"{STAND_INS}:{os.environ['PATH']}"
        more |= {"PATH": path, "PYTHONPATH": PYTHONPATH, "SLURM_TMPDIR": str(self.temporary)}
        train = script(self.directory, CLIENT)
        env = environment(**more) | changes
        self.process = start(*words, train, cwd=self.directory, environ=env)
        return self.process

    def workers(self, world, number=0):
        """Return the workers' reports, by rank, once all are there."""
        pattern = f"told-*.{number}.json"
        until(lambda: len(list(self.directory.glob(pattern))) == world)
        return [json.loads(p.read_text()) for p in sorted(self.directory.glob(pattern))]

    def helper(self, module):
        """Return the launcher's process of this module, once it is there."""

        def found():
            children = psutil.Process(self.process.pid).children()
            with contextlib.suppress(psutil.Error):  # one has just ended
                return [child for child in children if module in child.cmdline()]

        (helper,) = until(found)
        return helper

    def end(self):
        """Let the workers end: (exit code, the launcher's words)."""
        (self.directory / "go").touch()
        _, err = self.process.communicate(timeout=LIMIT)
        return self.process.returncode, without_load(err)

    def of_mps(self):
        """Processes whose directories are this machine's."""
        found = []
        for process in psutil.process_iter(["name"]):
            try:
                if process.info["name"].startswith("nvidia-cuda-mps"):
                    pipes = process.environ().get("CUDA_MPS_PIPE_DIRECTORY", "")
                    found += [process.pid] if pipes.startswith(str(self.temporary)) else []
            except psutil.Error:
                continue
        return living(found)


@pytest.fixture
def machine(tmp_path):
    temporary = Path(tempfile.mkdtemp(dir=SHORT))
    machine = Machine(tmp_path, temporary)
    yield machine
    if machine.process is not None and machine.process.poll() is None:
        end(machine.process, signal.SIGKILL)
    until(lambda: not machine.of_mps())
    assert list(temporary.iterdir()) == []
    shutil.rmtree(temporary)


def test_workers_on_one_gpu_are_clients_of_mps(machine):
    machine.launch("--nproc=3", "--mps-threads=25", "--mps-memory=2g")
    workers = machine.workers(3)
    assert [t["client"] for t in workers] == [True] * 3
    assert {t["CUDA_VISIBLE_DEVICES"] for t in workers} == {nvml.uuid(0)}
    assert {t["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] for t in workers} == {"25"}
    assert {t["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] for t in workers} == {"0=2G"}
    code, said = machine.end()
    assert code == 0
    assert "MPS runs for GPU 0; --mps off does without" in said
    assert len(said.splitlines()) == 2


def test_a_killed_fork_server_costs_neither_the_keeper_nor_the_watcher(machine):
    machine.launch("--nproc=2")
    machine.workers(2)
    kept = [
        machine.helper(m)
        for m in ("hpclaunch.worker.mps_keeper", "hpclaunch.system.gpus.gpu_watcher")
    ]
    machine.helper("hpclaunch.worker.fork_server").kill()
    assert [t["client"] for t in machine.workers(2, number=1)] == [True] * 2
    assert all(process.is_running() for process in kept)
    code, said = machine.end()
    assert code == 0
    assert "the fork server on" in said


def test_a_killed_watcher_is_replaced_at_once(machine):
    machine.launch("--nproc=1")
    (worker,) = machine.workers(1)
    machine.helper("hpclaunch.system.gpus.gpu_watcher").kill()
    until(lambda: "the process that reads NVML on" in machine.process.stderr.readline())
    successor = machine.helper("hpclaunch.system.gpus.gpu_watcher")
    os.kill(worker["pid"], signal.SIGKILL)
    machine.workers(1, number=1)
    assert successor.is_running()
    assert machine.end()[0] == 0


@pytest.mark.parametrize("health", ["on", "off"])
def test_the_gpus_stay_open_from_the_survey_on(machine, health):
    """Otherwise the driver would initialise them again, for the watcher and in each round."""
    machine.launch("--nproc=1", f"--health={health}")
    machine.workers(1)
    opened = psutil.Process(machine.process.pid).open_files()
    assert str(machine.driver.state) in [file.path for file in opened]
    assert machine.end()[0] == 0


NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", "--")


@pytest.fixture
def foreign(machine, tmp_path):
    """Yield the variables that name the directories of a daemon that root has started."""
    pipes = machine.temporary / "pipes"
    machine.temporary.chmod(0o755)
    pipes.mkdir()
    named = {"CUDA_MPS_PIPE_DIRECTORY": str(pipes), "CUDA_MPS_LOG_DIRECTORY": str(tmp_path)}
    environ = os.environ | named | {"CUDA_VISIBLE_DEVICES": nvml.uuid(0)}
    control = STAND_INS / "nvidia-cuda-mps-control"
    subprocess.run([control, "-d"], env=environ, check=True)
    yield named
    subprocess.run([control], input="quit -t 1\n", env=environ, text=True, check=False)
    shutil.rmtree(pipes)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_an_mps_daemon_that_serves_another_user(machine, foreign):
    """The job waits, says so, and continues."""
    # A copy that everybody can read.
    client = shutil.copy(STAND_INS / "cuda_client.py", foreign["CUDA_MPS_PIPE_DIRECTORY"])
    for path in (foreign["CUDA_MPS_PIPE_DIRECTORY"], client):
        os.chmod(path, 0o755)
    pipe = subprocess.PIPE
    command = [*NOBODY, "/usr/bin/python3", "-IS", client]
    with subprocess.Popen(command, env=foreign, stdin=pipe, stdout=pipe, text=True) as other:
        assert other.stdout.readline() == "client\n"
        machine.launch("--nproc=2", **foreign)
        until(lambda: "waiting for it" in machine.process.stderr.readline())
    assert [worker["client"] for worker in machine.workers(2)] == [True] * 2
    assert machine.end()[0] == 0


def test_mps_that_does_not_start(machine):
    machine.launch("--nproc=2", MPS_STAND_IN="refuses")
    assert [t["client"] for t in machine.workers(2)] == [False] * 2
    code, said = machine.end()
    assert code == 0
    assert "GPU 0: shared by time slices, without MPS: " in said
    machine.launch("--nproc=2", "--mps=on", MPS_STAND_IN="refuses")
    code, said = machine.end()
    assert code == 2
    assert "error: on " in said
    assert ": --mps on: " in said


def test_an_xid_is_recorded_once_in_a_round(machine):
    machine.launch("--nproc=1")
    machine.workers(1)
    for number in (31, 31, 13):
        machine.driver.xid(0, number)

    def recorded():
        (file,) = machine.directory.glob("hpclaunch-logs/*/facts.jsonl")
        lines, _, _ = file.read_text().rpartition("\n")  # the next one may be half written
        facts = map(json.loads, lines.splitlines())
        return [each["xid"] for each in facts if each.get("fact") == "XidReported"]

    until(lambda: 13 in recorded())
    assert recorded() == [31, 13]
    code, said = machine.end()
    assert (code, said.count("Xid 31")) == (0, 1)


def test_a_gpu_that_is_lost_at_the_start(machine):
    machine.driver.gpus = [Gpu(), Gpu(error=LOST)]
    machine.driver.apply()
    machine.launch()
    code, said = machine.end()
    assert code == 1
    assert "GPUs: GPU 1: GPU is lost (--health off starts anyway)" in said
    machine.launch("--health=off")
    assert machine.end()[0] == 0


def test_what_only_slows_is_said_once(machine):
    machine.driver.gpus[0].throttle = nvml.POWER_BRAKE
    machine.driver.apply()
    machine.launch("--nproc=1")
    (worker,) = machine.workers(1)
    os.kill(worker["pid"], signal.SIGKILL)
    machine.workers(1, number=1)
    code, said = machine.end()
    assert code == 0
    assert said.count("GPU 0 slowdown POWER_BRAKE: runs slower") == 1


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (["--mps-threads", "0"], "--mps-threads: '0' is neither auto nor a percentage above 0"),
        (["--mps-memory", "4"], "--mps-memory: '4' is not an amount of memory, such as 512M"),
        (["--mps", "maybe"], "--mps: invalid choice: 'maybe'"),
    ],
)
def test_bad_words(machine, words, wrong):
    machine.launch(*words)
    code, said = machine.end()
    assert code == 2
    assert wrong in said
    assert "Traceback" not in said


def test_metrics_name_a_gpu_as_dcgm_does(machine):
    port = free_port()
    machine.launch("--nproc=1", f"--metrics={port}")
    machine.workers(1)

    def sizes():
        return (scraped(port) or {}).get("hpclaunch_gpu_memory_size_bytes")

    (size,) = until(sizes, pause=0.2)
    labels = {name: size.labels[name] for name in ("gpu", "UUID", "Hostname")}
    assert labels == {"gpu": "0", "UUID": nvml.uuid(0), "Hostname": os.uname().nodename}
    assert size.value > 1 << 30
    assert machine.end()[0] == 0
