"""The running launches of this user, here or in Slurm's jobs, and the user's requests to them.

A short step, which overlaps the job's own steps, asks the agents of a Slurm job: on one node, where
the head usually is; if no agent is there, on all nodes; then on the node of the head.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import msgspec

from hpclaunch.core.protocol.job_snapshot import LaunchSnapshot
from hpclaunch.core.protocol.model import Request
from hpclaunch.core.protocol.values import field, value

from ..shared import packing, slurm_steps
from ..shared.slurm_steps import Part, SlurmJob
from . import view_client
from .view_socket import LOOK as LOOK_WORD

MARK = "hpclaunch-view"  # begins each line of the step
LOOK = LOOK_WORD.decode()
AT_ONCE = 8  # jobs that are asked at the same time


class NoLaunchError(Exception):
    """No launch of this name was found, or none answers. The text says why."""


class UnreachableError(NoLaunchError):
    """The launch may still run, but its head cannot be asked now: perhaps there is none yet."""


class LaunchList(NamedTuple):
    """The launches of a user."""

    launches: Sequence[LaunchSnapshot]
    others: Sequence[tuple[str, str]] = ()  # Slurm's jobs without an answer, and their states
    complaint: str = ""  # of Slurm's commands


@value(frozen=True)
class FoundLaunches:
    """Launches of one name, and how to ask them again."""

    which: str
    launches: Sequence[LaunchSnapshot]
    step: Sequence[str] = ()  # the beginning of a command line that runs on their head's node
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def only(self) -> LaunchSnapshot:
        """Return the only launch of this name. Raises NoLaunchError, which names several."""
        if len(self.launches) > 1:
            names = ", ".join(launch.name for launch in self.launches)
            raise NoLaunchError(f"job {self.which} has several launches, name one: {names}")
        return self.launches[0]

    def request(self, request: Request) -> list[str]:
        """Send a request to each launch. Return why each refuses it; "" for one that grants it.
        Raises NoLaunchError if they cannot be asked.
        """
        if not self.step:
            return view_client.request(request.value, self.which)
        with _started():
            done = slurm_steps.run([*self.step, *_reader(self.which, request.value)], self.env)
        answers = [json.loads(answer) for answer in Answers().read(done.lines) if answer]
        if not answers and done.complaint:
            why = _first_error(done.complaint)
            raise UnreachableError(f"cannot ask job {self.which}: {why}")
        return answers

    def watch(self, pause: float) -> LaunchStream:
        """Return a stream of snapshots, one every `pause` seconds. Raises NoLaunchError."""
        with _started():
            return LaunchStream([*self.step, *_reader(self.which, LOOK, pause)], self.env or None)


class LaunchStream:
    """A stream of snapshots from a process of its own. It is `over` once none of the launches is
    led from that node: they have ended, or another agent leads.
    """

    def __init__(self, command: Sequence[str], env: Mapping[str, str] | None) -> None:
        self.over = False
        self._process = subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._text = b""
        self._answers = Answers()
        self._said: list[bytes] = []  # answers since the last complete look

    def __enter__(self) -> LaunchStream:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def fileno(self) -> int:
        assert self._process.stdout is not None, "it was asked for"
        return self._process.stdout.fileno()

    def receive(self) -> list[Sequence[LaunchSnapshot]]:
        """Return the snapshots of each look since the last call; wait if there was none."""
        data = os.read(self.fileno(), 1 << 20)
        self.over = self.over or not data
        *lines, self._text = (self._text + data).split(b"\n")
        found: list[Sequence[LaunchSnapshot]] = []
        for answer in self._answers.read(line.decode(errors="replace") for line in lines):
            if answer:
                self._said.append(answer)
                continue
            leading, self._said = _leading(map(_read, self._said)), []
            self.over = self.over or not leading
            found += [leading] if leading else []
        return found


def find(which: str, environ: Mapping[str, str]) -> FoundLaunches:
    """Return the launches with this name, or of this Slurm job. Raises NoLaunchError for none, and
    UnreachableError if one may run.
    """
    if not which:  # perhaps an unset variable; "" would match all launches
        raise NoLaunchError("the name of the job is empty: hpclaunch status lists them")
    here = [_read(data) for _, data in view_client.looked_patiently(which)]
    if leading := _leading(here):
        return FoundLaunches(which, leading)
    number = which.partition(".")[0]
    if not number[:1].isdecimal():
        if here:  # a member of it runs here
            raise UnreachableError(f"no launch {which} is led from this machine")
        why = "it is over, runs elsewhere or has another name; hpclaunch status lists what runs"
        raise NoLaunchError(f"no launch {which} runs on this machine: {why}")
    unseen = UnreachableError if here else NoLaunchError
    env, shown = slurm_steps.environment(environ), slurm_steps.without_component(number)
    try:
        with _started():
            jobs, complaint = slurm_steps.jobs_of(f"--jobs={shown}", env)
    except NoLaunchError as e:
        raise unseen(f"cannot look at job {which}: {e}") from e
    running = [job for job in jobs if job.state == slurm_steps.RUNNING]
    if not running:
        if not (jobs or complaint):
            raise NoLaunchError(f"job {which} is over")
        state = f"it is {jobs[0].state}" if jobs else ""
        is_over = not complaint or "Invalid job id" in complaint  # Slurm forgets old jobs
        no_launch = NoLaunchError if is_over else UnreachableError
        raise no_launch(f"cannot look at job {which}: {complaint or state}")
    if len(running) > 1:
        names = ", ".join(sorted(job.name for job in running))
        raise NoLaunchError(f"job {which} has several running elements, name one: {names}")
    try:
        return _in_job(running[0], running[0].id if which == number else which, env)
    except NoLaunchError as e:
        raise type(e)(f"cannot look at job {which}: {e}") from e


def all_launches(environ: Mapping[str, str]) -> LaunchList:
    """Return this user's launches: those led from this machine, and those of all Slurm jobs."""
    here, others = _known(data for _, data in view_client.looked_patiently(""))
    launches = {launch.name: launch for launch in here}
    env = slurm_steps.environment(environ)
    try:
        jobs, complaint = slurm_steps.jobs_of(f"--user={os.geteuid()}", env)
    except OSError:
        return LaunchList(here, others)
    known = {launch.slurm_id for launch in here}
    asked = [j for j in jobs if j.state == slurm_steps.RUNNING and j.id not in known]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(partial(_try, env=env), asked))
    for job, found in zip(asked, answers, strict=True):
        if isinstance(found, NoLaunchError):
            others.append((job.name, f"{job.state.lower()}: {found}"))
        else:
            launches |= {launch.name: launch for launch in found.launches}
    others += [(job.name, job.state.lower()) for job in jobs if job.state != slurm_steps.RUNNING]
    return LaunchList(list(launches.values()), others, complaint)


def of_process(pid: int) -> LaunchSnapshot | None:
    """Return the launch of an agent on this machine; None if that does not answer."""
    return next((_read(data) for _, data in view_client.looked_patiently(pid)), None)


def _try(job: SlurmJob, env: Mapping[str, str]) -> FoundLaunches | NoLaunchError:
    try:
        return _in_job(job, job.id, env)
    except NoLaunchError as e:
        return e


def _in_job(job: SlurmJob, which: str, env: Mapping[str, str]) -> FoundLaunches:
    seen, complaint = _look_in([(part, "1") for part in job.parts], which, env)
    larger = [(part, part.nodes) for part in job.parts if part.nodes != "1"]
    if not seen and larger:  # the tasks of a step may be on other nodes
        seen, complaint = _look_in(larger, which, env)
    leading = [(part, launch) for part, launch in seen if launch.job is not None]
    heads = [launch.host for _, launch in leading] or [launch.head for _, launch in seen]
    if not heads:
        if complaint:
            raise UnreachableError(_first_error(complaint))
        raise NoLaunchError("no hpclaunch runs in it")
    head = next(filter(None, heads), "")  # some agents may not know it
    if not head:
        raise UnreachableError("it has no head at the moment: ask again later")
    there = f"--nodelist={head}"
    if not leading:
        seen, complaint = _look_in([(part, "1") for part in job.parts], which, env, there)
        leading = [(part, launch) for part, launch in seen if launch.job is not None]
    if not leading:
        silent = f"no answer from {head}, where its head is"
        raise UnreachableError(_first_error(complaint) or silent)
    step = slurm_steps.srun(leading[0][0], "1", there)
    return FoundLaunches(which, [launch for _, launch in leading], step, env)


def _look_in(
    places: Iterable[tuple[Part, str]], which: str, env: Mapping[str, str], *options: str
) -> tuple[list[tuple[Part, LaunchSnapshot]], str]:
    """Return the launches in these parts of a job, asked on so many nodes of each; and the first
    complaint.
    """
    seen: list[tuple[Part, LaunchSnapshot]] = []
    complaints: list[str] = []
    for part, nodes in places:
        launches, complaint = _look(slurm_steps.srun(part, nodes, *options), which, env)
        seen += [(part, launch) for launch in launches]
        complaints += [complaint] if complaint else []
    return seen, next(iter(complaints), "")


def _look(
    step: Sequence[str], which: str, env: Mapping[str, str]
) -> tuple[list[LaunchSnapshot], str]:
    """Return the launches that a step finds, and its complaint."""
    with _started():
        done = slurm_steps.run([*step, *_reader(which, LOOK)], env)
    return [_read(answer) for answer in Answers().read(done.lines) if answer], done.complaint


@contextmanager
def _started() -> Iterator[None]:
    """Raise UnreachableError if a command cannot be started, for example a missing one."""
    try:
        yield
    except OSError as e:
        raise UnreachableError(": ".join(filter(None, (e.strerror, e.filename)))) from e


def _first_error(complaint: str) -> str:
    """Return the first error of srun, or of a program that it has started: the others follow from
    it. There may be warnings before.
    """
    lines = complaint.splitlines() or [""]
    return next((line for line in lines if "error" in line), lines[0])


def _reader(which: str, word: str, pause: float = 0.0) -> Sequence[str]:
    return slurm_steps.reader(view_client.__name__, MARK, which, word, str(pause))


class Answers:
    """The answers in the output of steps, which `view_client.main` prints in pieces."""

    def __init__(self) -> None:
        self._parts: dict[str, list[str]] = {}  # by host

    def read(self, lines: Iterable[str]) -> Iterator[bytes]:
        """Yield each answer once it is complete, and b"" after the last one of a host."""
        for line in lines:
            mark, host, said = (*line.split(" ", 2), "", "")[:3]
            if mark != MARK:
                continue  # a site's prolog may print anything
            if said.startswith("+"):
                self._parts.setdefault(host, []).append(said[1:])
            elif said == ".":
                yield "".join(self._parts.pop(host, [])).encode()
            elif said == "=":
                yield b""


def _leading(launches: Iterable[LaunchSnapshot]) -> list[LaunchSnapshot]:
    return [launch for launch in launches if launch.job is not None]


def _known(answers: Iterable[bytes]) -> tuple[list[LaunchSnapshot], list[tuple[str, str]]]:
    """Return the launches that are led from here, and the names of launches that cannot be read,
    with the reasons.
    """
    leading: list[LaunchSnapshot] = []
    others: list[tuple[str, str]] = []
    for answer in answers:
        try:
            leading += _leading([_read(answer)])
        except NoLaunchError as e:
            others.append((view_client.unpacked(answer)["name"], str(e).partition(": ")[0]))
    return leading, others


def _read(data: bytes) -> LaunchSnapshot:
    try:
        return packing.unpack(data, LaunchSnapshot)
    except msgspec.MsgspecError as e:
        raise NoLaunchError(f"it runs with another version of hpclaunch: {e}") from e
