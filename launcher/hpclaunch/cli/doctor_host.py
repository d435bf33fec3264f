"""The doctor's checks of one host, in the order of its table."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import socket
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from hpclaunch import __version__
from hpclaunch.core.health.findings import Finding, Grade
from hpclaunch.core.health.host_rules import Host, judge_host
from hpclaunch.core.protocol.errors import UsageError
from hpclaunch.core.protocol.model import HEAD, Allocation
from hpclaunch.core.protocol.wording import count
from hpclaunch.system.gpus.inventory import GpuSurvey
from hpclaunch.system.hosts import checks, host, slurm
from hpclaunch.system.hosts.checks_torch import Question
from hpclaunch.system.network import route, secret

from . import doctor_gpus
from .worker_count import survey

ATTEMPTS = 2  # to resolve a name


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The surroundings of this task. `secret` is None if it is not needed, or not usable."""

    environ: Mapping[str, str]
    where: Allocation
    findings: tuple[Finding, ...]  # on Slurm and the secret
    secret: bytes | None = None

    @property
    def host(self) -> str:
        return self.where.places[self.where.index].host


def surroundings(environ: Mapping[str, str]) -> Surroundings:
    """Return the surroundings, which all other checks depend on."""
    unique = str(os.getpid())
    try:
        where = slurm.allocation(environ, unique=unique)
    except UsageError as e:
        wrong = Finding("Slurm", str(e), Grade.FAIL)
        bare = {k: v for k, v in environ.items() if not k.startswith("SLURM")}
        return Surroundings(environ, slurm.allocation(bare, unique=unique), (wrong,))
    findings = [Finding("Slurm", _slurm(environ, where))]
    if "SLURM_JOB_ID" in environ and shutil.which("scontrol") is None:
        findings.append(Finding("scontrol", "not in PATH: the job ends at SLURM_JOB_END_TIME"))
    if where.alone:
        return Surroundings(environ, where, (*findings, _unneeded_secret(environ)))
    finding, shared = secret_file(environ)
    return Surroundings(environ, where, (*findings, finding), shared)


def _slurm(environ: Mapping[str, str], where: Allocation) -> str:
    job = environ.get("SLURM_JOB_ID")
    if job is None:
        return "none: this machine alone"
    if not slurm.in_step(environ):
        return f"job {job}, without srun: this host alone"
    shape = [count(where.nodes, "host"), count(len(where.places), "task")]
    each = {"CPU": ("SLURM_CPUS_PER_TASK", "task"), "GPU": ("SLURM_GPUS_ON_NODE", "host")}
    for noun, (name, of) in each.items():
        if environ.get(name, "").isdecimal():
            shape.append(f"{count(int(environ[name]), noun)} per {of}")
    return ", ".join([f"step {where.name}", *shape])


def secret_file(environ: Mapping[str, str]) -> tuple[Finding, bytes | None]:
    """Check the secret file, and create it if it is missing, as a launch does."""
    try:
        path = secret.secret_path(environ)
        shared = secret.load_or_create(path)
    except UsageError as e:
        return Finding("secret", str(e), Grade.FAIL), None
    mode = stat.S_IMODE(path.stat().st_mode)
    said = f"{path}, mode {mode:04o}, on {checks.file_system(path)}"
    return Finding("secret", f"{said}, fingerprint {secret.fingerprint(shared)}"), shared


def _unneeded_secret(environ: Mapping[str, str]) -> Finding:
    """Check the secret file, which the next job may need although this single agent does not."""
    with contextlib.suppress(UsageError):
        path = secret.secret_path(environ)
        if not os.path.lexists(path):
            return Finding("secret", f"none yet; jobs of several tasks make {path}")
    finding, shared = secret_file(environ)
    return finding if shared is not None else replace(finding, grade=Grade.WARN)


def examine(here: Surroundings, log_dir: Path, limit: float) -> list[Finding]:
    """Run all checks of this host. `limit`: seconds for the workers' torch."""
    findings = list(here.findings)
    checks = _checks(here, log_dir, limit)
    while True:
        try:
            findings += next(checks)()
        except StopIteration:
            return findings
        except Exception as e:  # reported as a finding
            findings.append(Finding("doctor", f"a check broke: {e!r}", Grade.WARN, "report it"))


def _checks(
    here: Surroundings, log_dir: Path, limit: float
) -> Iterator[Callable[[], list[Finding]]]:
    environ, agents = here.environ, len(here.where.places)
    question = _ask_torch(environ)
    seen = survey(environ, limit)
    alone = here.where.tasks_here == 1
    workers = max(1, len(seen.gpus)) if alone else 1  # as a launch without options starts
    ours = f"{__version__}, in Python {platform.python_version()} ({sys.executable})"
    yield lambda: [Finding("hpclaunch", ours)]
    yield lambda: [checks.own_name(socket.gethostname(), several=here.where.nodes > 1)]
    yield lambda: [_route(here)]
    yield lambda: checks.interfaces(environ)
    yield lambda: [_port()] if here.where.alone else []
    yield lambda: [checks.clock(host.clock_is_synchronised())]
    yield lambda: [checks.cpus(workers)]
    yield lambda: [checks.memory(workers * here.where.tasks_here, host.memory_limit())]
    yield lambda: judge_host(Host(workers=0, load=host.load(), cpus=os.cpu_count() or 1))
    yield lambda: [checks.shared_memory()]
    yield lambda: [checks.limits(agents, workers)]
    yield lambda: [checks.log_directory(log_dir)]
    yield lambda: _torch_and_gpus(question, limit, environ, seen)
    yield lambda: doctor_gpus.health(seen)
    yield lambda: doctor_gpus.cpus_of_workers(here.where, seen)
    yield lambda: doctor_gpus.sharing(environ, seen, here.host)


def _route(here: Surroundings) -> Finding:
    """Check the route to the head, or from the head to another host."""
    places, index = here.where.places, here.where.index
    if here.where.nodes == 1:
        return Finding("route", "one host: nothing leaves it")
    mine = places[index].node
    others = [p.host for p in places if p.node != mine]
    to = others[0] if mine == places[HEAD].node else places[HEAD].host
    try:
        peer = route.resolve_patiently(to, ATTEMPTS)[0]
        source = route.source_address(peer)
    except OSError as e:
        advice = "all nodes must know each other's addresses, by name or by Slurm's NodeAddr"
        return Finding("route", f"to {to}: {e}", Grade.FAIL, advice)
    return Finding("route", f"{source} on {route.interface_of(source)}, to {to} ({peer})")


def _port() -> Finding:
    try:
        with socket.create_server((route.LOOPBACK, 0)):
            return Finding("port", f"can listen on {route.LOOPBACK}")
    except OSError as e:
        advice = "look at ip address show lo, and at limits of the container"
        return Finding("port", f"cannot listen on {route.LOOPBACK}: {e}", Grade.FAIL, advice)


def _ask_torch(environ: Mapping[str, str]) -> Question | Finding:
    named = environ.get("PYTHON_EXEC")
    try:
        return Question(named or sys.executable)
    except OSError as e:
        said = f"PYTHON_EXEC={named}" if named else sys.executable
        advice = "set PYTHON_EXEC to the interpreter of the workers, or unset it" if named else ""
        return Finding("torch", f"{said}: {e.strerror}", Grade.FAIL, advice)


def _torch_and_gpus(
    question: Question | Finding, limit: float, environ: Mapping[str, str], seen: GpuSurvey
) -> list[Finding]:
    if isinstance(question, Finding):
        return [question, doctor_gpus.there(None, environ, seen)]
    finding, torch = question.answer(limit)
    return [finding, doctor_gpus.there(torch, environ, seen)]
