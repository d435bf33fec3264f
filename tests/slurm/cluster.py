"""A real Slurm cluster for the tests: munged, slurmctld and slurmd on `hosts`, and jobs on it.

All its files are in one temporary directory and in the hosts' own namespaces, so it does not
conflict with a Slurm of this machine or with other clusters of these tests.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pwd
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import surroundings
from hpclaunch.system.network.zmq_channel import PORTS

from . import hosts
from .hosts import LIMIT, Host, Process

TOOLS = (*hosts.TOOLS, "munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "scancel")
CONTROLLER = "ctl"
PREFIX = "hpclaunch-slurm-"
UNFINISHED = ("PENDING", "CONFIGURING", "RUNNING", "SIGNALING", "COMPLETING")
DAEMONS = r"^(\S*/)?(slurmd|slurmstepd|slurmctld|slurmscriptd|munged)\b|^: slurmscriptd"
NOT_JOBS = rf"{DAEMONS}|^\S+ {re.escape(str(surroundings.STRANGER))}$"
_CONFIG = """\
ClusterName=test
SlurmctldHost={controller}
AuthInfo=socket={directory}/munge.socket
JobCompType=jobcomp/filetxt
JobCompLoc={directory}/ended
MpiDefault=none
ProctrackType=proctrack/linuxproc
ReturnToService=2
SlurmUser=root
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd.%h.pid
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool.%h
SlurmctldLogFile={directory}/slurmctld.log
SlurmdLogFile={directory}/slurmd.%h.log
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,bf_interval=1
SlurmdParameters=config_overrides
SlurmdTimeout=120
KillWait=20
MinJobAge=60
UnkillableStepTimeout=50
GresTypes=gpu
NodeName=n[1-{nodes}] NodeAddr={addresses} CPUs={cpus} RealMemory=4000 Gres=gpu:{gpus} State=UNKNOWN
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=DEFAULT Nodes=n[1-{nodes}] MaxTime=INFINITE State=UP
PartitionName=main Default=YES PriorityTier=1 GraceTime=30
PartitionName=urgent PriorityTier=2 PreemptMode=OFF
"""


def eventually(
    what: str, found: Callable[[], object], timeout: float = LIMIT, pause: float = 0.1
) -> None:
    """Wait until `found()` is true. AssertionError, which names `what`, after the timeout."""
    began = time.monotonic()
    while not found():
        waited = time.monotonic() - began
        assert waited < timeout, f"{what}: not within {timeout:.0f} s"
        time.sleep(max(pause, min(0.5, waited / 40)))


def remove_stale() -> None:
    """Remove the directories of test runs that were killed; their processes ended with them.

    A cluster holds the lock in its directory as long as its process lives.
    """
    with _no_new_directories():
        for path in Path(surroundings.SHORT).glob(f"{PREFIX}*"):
            # Another test process may be removing it.
            with contextlib.suppress(FileNotFoundError, BlockingIOError):
                if path.is_symlink() or path.stat().st_uid != os.geteuid():
                    continue
                with (path / "lock").open("w") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path)


@contextmanager
def _no_new_directories() -> Iterator[None]:
    """Exclude other test processes from this: a new directory has no lock for a moment."""
    with Path(surroundings.SHORT, "hpclaunch-clusters.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _version() -> tuple[int, int]:
    """Return the version of Slurm, such as (22, 5)."""
    said = subprocess.check_output(["slurmd", "-V"], text=True)  # slurm-wlm 22.05.8
    year, month, _ = said.split()[-1].split(".", 2)
    return int(year), int(month)


class Cluster:
    """A Slurm cluster. Call `up` first and `down` last; `nodes` are n1, n2, ..."""

    def __init__(self, open_to_all: Sequence[Path]) -> None:
        """`open_to_all` are the directories that jobs of all users must be able to read."""
        with _no_new_directories():
            self.directory = Path(tempfile.mkdtemp(prefix=PREFIX, dir=surroundings.SHORT))
            self._lock = (self.directory / "lock").open("w")
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.directory.chmod(0o755)
        self._open_to_all = open_to_all
        self._all: list[Host] = []
        self.submitted: list[Job] = []  # by the current test
        self.env = {  # without the other variables of the tests' environment
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "LANG": "C.UTF-8",
            "PYTHONDONTWRITEBYTECODE": "1",
            "SLURM_CONF": str(self.directory / "slurm.conf"),
            **surroundings.variables,
        }

    def up(self, nodes: int, gpus: int, cpus: int) -> None:
        """Start the cluster and wait until all nodes are idle.

        The caller must call `down`, also after an exception.
        """
        names = {CONTROLLER: 1} | {f"n{i}": 10 + i for i in range(1, nodes + 1)}
        self._write_config(names, nodes=nodes, gpus=gpus, cpus=cpus)
        setup = [f"mount --bind {self.directory}/hosts /etc/hosts"]
        # Name lookups succeed or fail at once, as with a name server that answers.
        setup += [f"mount --bind {self.directory}/nsswitch.conf /etc/nsswitch.conf"]
        # Otherwise each host would show the load of all hosts and of other tests.
        setup += [f"mount --bind {self.directory}/loadavg /proc/loadavg"]
        setup += hosts.opening(self._open_to_all, self.directory / "aside")
        if "stranger" in surroundings.entered:
            setup.append(f"cat < <({sys.executable} {surroundings.STRANGER})")
        for name, number in names.items():
            self._all.append(Host(name, number, setup))
        self.controller, *computing = self._all
        self.nodes = {host.name: host for host in computing}
        self.controller.become_switch()
        for host in computing:
            host.connect(self.controller)
        self._start_daemons()

    def _write_config(self, names: Mapping[str, int], **numbers: int) -> None:
        here = self.directory
        (here / "state").mkdir()
        lines = ["127.0.0.1 localhost", *(f"{hosts.NETWORK[n]} {h}" for h, n in names.items())]
        lines += [f"{hosts.SECOND_NETWORK[n]} {h}i" for h, n in names.items()]
        addresses = ",".join(str(hosts.NETWORK[n]) for h, n in names.items() if h != CONTROLLER)
        config = _CONFIG.format(
            controller=CONTROLLER, directory=here, addresses=addresses, **numbers
        )
        gres = f"Name=gpu File={here}/gpu[0-{numbers['gpus'] - 1}]\n"
        files = {"hosts": "\n".join(lines) + "\n", "loadavg": "0.00 0.00 0.00 1/1 1\n"}
        files |= {"nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n"}
        files |= {"slurm.conf": config, "gres.conf": gres}
        files |= {f"gpu{n}": "" for n in range(numbers["gpus"])}  # enough for Slurm
        if _version() >= (24, 5):  # where slurmd needs cgroups by default
            files["cgroup.conf"] = "CgroupPlugin=disabled\n"
        for name, text in files.items():
            (here / name).write_text(text)
            (here / name).chmod(0o644)  # readable by all users
        key = here / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(1024))

    def _start_daemons(self) -> None:
        names = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log"}
        options = [f"--{o}={self.directory}/munge.{n}" for o, n in names.items()]
        self.start_daemon(
            CONTROLLER, "munged", *options, f"--seed-file={self.directory}/munge.seed"
        )
        self.start_daemon(CONTROLLER, "slurmctld")
        for name in self.nodes:
            self.start_daemon(name, "slurmd")

        eventually("an idle cluster", self.is_idle)

    def is_idle(self) -> bool:
        states = self.on(CONTROLLER, ["sinfo", "-h", "-p", "main", "-N", "-o", "%T"]).split()
        return states == ["idle"] * len(self.nodes)

    def down(self) -> None:
        try:
            for host in self._all:
                host.down()
            shutil.rmtree(self.directory, ignore_errors=True)
        finally:
            self._lock.close()

    # On the hosts

    def on(self, host: str, argv: Sequence[str], *, user: str = "", stdin: str = "") -> str:
        """Run a command on a host; AssertionError with its output when it fails."""
        where = self.controller if host == CONTROLLER else self.nodes[host]
        return where.run(argv, env=self.env, user=user, stdin=stdin)

    def start_daemon(self, host: str, *argv: str) -> None:
        """Start a daemon with an ordinary umask, whatever the umask of this cluster's users is."""
        self.on(host, ["sh", "-c", 'umask 022; exec "$@"', "sh", *argv])

    def processes(self, pattern: str = "", host: str = "") -> list[Process]:
        """Return the jobs' processes on all nodes, or on one, without zombies."""
        where = [self.nodes[host]] if host else list(self.nodes.values())
        return hosts.processes(where, rf"^(?!{NOT_JOBS}).*(?:{pattern})")

    def process(self, pattern: str, host: str = "") -> Process:
        """Return the only such process of jobs, on all nodes or on one, once there is only one: a
        child has the command line of its parent until it executes a program of its own.
        """
        found: list[Process] = []

        def is_alone() -> bool:
            found[:] = self.processes(pattern, host)
            return len(found) == 1

        eventually(f"one process {pattern!r} on {host or 'all nodes'}", is_alone)
        return found[0]

    @contextmanager
    def partitioned(self, names: Collection[str]) -> Iterator[None]:
        """Move these nodes to a network of their own, without the other nodes and the controller.

        No connection is closed.
        """
        for name in names:
            self.nodes[name].move(hosts.OTHER_SWITCH)
        try:
            yield
        finally:
            for name in names:
                self.nodes[name].move(hosts.SWITCH)

    @contextmanager
    def refusing(self, names: Collection[str], others: Collection[str]) -> Iterator[None]:
        """Let these nodes refuse connections from the others' agents, and reset existing ones."""
        ports = f"{PORTS.start}-{PORTS.stop - 1}"  # not Slurm's: srun would end the step
        with ExitStack() as firewalls:
            for name in names:
                addresses = [self.nodes[other].address for other in others]
                firewalls.enter_context(self.nodes[name].refusing(addresses, ports))
            yield

    @contextmanager
    def with_second_network(self) -> Iterator[None]:
        """Connect all nodes to a second network, where their names are n1i, n2i, ..."""
        with ExitStack() as links:
            for host in self.nodes.values():
                links.enter_context(host.second_link())
            yield

    @contextmanager
    def without_names(self) -> Iterator[None]:
        """Let each node resolve only its own name and the controller's."""
        for host in self.nodes.values():
            file = self.directory / f"hosts.{host.name}"
            known = [f"{h.address} {h.name}\n" for h in (host, self.controller)]
            file.write_text("127.0.0.1 localhost\n" + "".join(known))
            file.chmod(0o644)
            self.on(host.name, ["mount", "--bind", str(file), "/etc/hosts"])
        try:
            yield
        finally:
            for name in self.nodes:
                self.on(name, ["umount", "/etc/hosts"])

    # Jobs

    def environment(self, home: Path) -> dict[str, str]:
        """Return the environment of a job whose user has this home."""
        users = {"HOME": str(home), "XDG_STATE_HOME": f"{home}/state"}
        return self.env | users | surroundings.variables

    def sbatch(
        self,
        body: str,
        *,
        directory: Path,
        nodes: int = 3,
        user: str = "",
        env: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
    ) -> Job:
        """Submit a job script with one task per node; its files and home are in `directory`."""
        output = directory / f"job-{secrets.token_hex(4)}.out"
        command = ["sbatch", "--parsable", "--no-requeue", f"--nodes={nodes}", f"-D{directory}"]
        command += ["--ntasks-per-node=1", f"--output={output}", "--open-mode=append", *options]
        script = f"#!/bin/bash\n{body}\n"
        job_id = self.controller.run(
            command, env=self.environment(directory) | dict(env or {}), user=user, stdin=script
        )
        return Job(self, int(job_id.split(";")[0]), directory, output)

    def has_ended(self, job: int) -> bool:
        """Return whether Slurm has recorded the end of a run of the job.

        Its nodes may not be idle yet.
        """
        ended = (self.directory / "ended").read_text(errors="replace").splitlines()
        return any(line.startswith(f"JobId={job} ") for line in ended)

    def jobs(self) -> list[str]:
        """Return the ids of jobs that have not ended."""
        return self.on(CONTROLLER, ["squeue", "-h", "-o", "%i"]).split()

    def directory_of(self, user: str) -> Path:
        """Make a new directory that belongs to the user and that the user can reach."""
        directory = Path(tempfile.mkdtemp(prefix=f"{user}-", dir=self.directory))
        entry = pwd.getpwnam(user)
        os.chown(directory, entry.pw_uid, entry.pw_gid)
        return directory


def _is_far(begin: str) -> bool:
    """Return whether a job will begin later than in a few seconds."""
    try:
        return time.mktime(time.strptime(begin, "%Y-%m-%dT%H:%M:%S")) > time.time() + 10
    except ValueError:
        return False  # Slurm does not know it yet


@dataclass(frozen=True, slots=True)
class JobResult:
    """The end of a job.

    Its text does not contain the console: the report of a failed test has a section for that.
    """

    state: str
    code: int  # of the batch script
    output: str = field(repr=False)

    def __str__(self) -> str:
        return f"{self.state} with {self.code}"


@dataclass(frozen=True, slots=True)
class Job:
    """A submitted job."""

    cluster: Cluster
    id: int
    directory: Path
    _output: Path

    def __post_init__(self) -> None:
        self.cluster.submitted.append(self)

    @property
    def output(self) -> str:
        return self._output.read_text(errors="replace") if self._output.exists() else ""

    def __str__(self) -> str:
        """Show its state, exit codes, logs and console, for a test that failed."""
        try:
            state = self.fields()["JobState"]
        except AssertionError as e:  # Slurm does not answer, or has forgotten the job
            state = str(e)
        logs = [str(path) for path in self.directory.glob("hpclaunch-logs/*")]
        return (
            f"job {self.id}: {state}; exit codes of its agents by task: {self.codes}; logs: "
            f"{', '.join(logs) or f'none in {self.directory}/hpclaunch-logs'}; its console:\n"
            f"{self.output}"
        )

    def wait(self, timeout: float = LIMIT, *, runs: int = 1) -> JobResult:
        """Wait until Slurm has removed the job from its nodes, after at most so many `runs`."""
        fields: dict[str, str] = {}

        def over() -> bool:
            if runs == 1 and not self.cluster.has_ended(self.id):
                return False  # Slurm's commands cost CPU time
            fields.update(self.fields())
            for times in range(1, runs):
                self._begins(fields, times)
            return fields["JobState"] not in UNFINISHED

        eventually(f"the end of job {self.id}", over, timeout)
        return JobResult(fields["JobState"], int(fields["ExitCode"].split(":")[0]), self.output)

    def wait_for_requeue(self, times: int, timeout: float = LIMIT) -> None:
        """Wait until Slurm has requeued the job so many times, and let it begin."""

        def begun() -> bool:
            fields = self.fields()
            state = fields["JobState"]
            has_ended = state not in UNFINISHED and state != "REQUEUED"
            assert not has_ended, f"job {self.id} is not requeued, but {state}"
            return self._begins(fields, times)

        eventually(f"requeue {times} of job {self.id}", begun, timeout)

    def _begins(self, fields: Mapping[str, str], times: int) -> bool:
        waits = fields["JobState"] == "PENDING" and fields["Restarts"] == str(times)
        if waits and _is_far(fields["StartTime"]):  # Slurm's own delay is two minutes
            now = ["scontrol", "update", f"JobId={self.id}", "StartTime=now+3"]
            with contextlib.suppress(AssertionError):  # the job may have just begun
                self.cluster.on(CONTROLLER, now)
        return waits

    def fields(self) -> dict[str, str]:
        shown = self.cluster.on(CONTROLLER, ["scontrol", "show", "job", "-o", str(self.id)])
        pairs = (word.partition("=") for word in shown.split())
        return {name: value for name, _, value in pairs}

    def cancel(self, *options: str) -> None:
        self.cluster.on(CONTROLLER, ["scancel", *options, str(self.id)])

    def says(self, text: str, timeout: float = LIMIT) -> None:
        """Wait until the text is on the job's console."""
        eventually(f"{text!r} on the console", lambda: text in self.output, timeout)

    @property
    def codes(self) -> dict[int, int]:
        """The exit codes of the agents by task (see `scripts/agent.sh`)."""
        found = [p for p in self.directory.glob("code.*") if p.suffix[1:].isdecimal()]
        return {int(p.suffix[1:]): int(p.read_text()) for p in found}

    def environments(self) -> dict[int, Mapping[str, str]]:
        """Return the recorded environment of each worker, by rank (see `scripts/simple.py`)."""
        found = self.directory.glob("environ-*.json")
        return dict(sorted((int(p.stem[8:]), json.loads(p.read_text())) for p in found))

    def forget(self) -> None:
        """Delete the environments that were recorded so far."""
        for file in self.directory.glob("environ-*"):
            file.unlink()

    def wait_for_workers(self, world: int) -> None:
        """Wait until so many workers of `scripts/simple.py` have recorded their environments."""
        eventually(f"{world} workers", lambda: len(self.environments()) == world)
