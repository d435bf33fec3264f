"""The step of Slurm to which this process belongs, according to its environment."""

from __future__ import annotations

import os
import re
import reprlib
import socket
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice, pairwise
from pathlib import Path

from hpclaunch.core.protocol.errors import UsageError
from hpclaunch.core.protocol.model import Allocation, Place

from ..shared import slurm_steps
from ..shared.step_membership import own_step

NUMBERS = r"\d{1,9}(?:-\d{1,9})?"  # in the brackets of a host list
MOST = 1 << 17  # hosts or tasks; more mean a broken environment, not a cluster
LAUNCHERS = (b"hpclaunch", b"torchrun", b"torch.distributed")  # in the arguments of srun
# Options of srun whose value may contain the name of a launcher.
NAMING = {b"-J", b"--job-name", b"-o", b"--output", b"-e", b"--error", b"-D", b"--chdir"}
# A shell that salloc opened on the first node, in Slurm 22.05 and in 26.05
INTERACTIVE_STEPS = ("4294967290", "-6")


def in_step(environ: Mapping[str, str]) -> bool:
    """Return whether srun started this process. The batch script has no list of a step's nodes."""
    is_any = {"SLURM_STEP_ID", "SLURM_STEP_NODELIST"} <= environ.keys()
    return is_any and environ["SLURM_STEP_ID"] not in INTERACTIVE_STEPS


def own_name(environ: Mapping[str, str]) -> str:
    """Return the name of this host: in a job, the one that Slurm's commands take."""
    node = environ.get("SLURMD_NODENAME") if "SLURM_JOB_ID" in environ else None
    return node or socket.gethostname()


def allocation(
    environ: Mapping[str, str], *, unique: str, run_id: str = "", alone: bool = False
) -> Allocation:
    """Return the allocation that the environment of a step describes.

    `unique` distinguishes launches outside of a step, and the user's `run_id` those in one step.
    With `alone`, other tasks of the step and other nodes of the job are ignored.
    """
    job = environ.get("SLURM_JOB_ID")
    if job and not alone:
        _check_job(environ)
    if in_step(environ):
        where = _of_step(environ, run_id)
        if alone or (not where.alone and _has_only_terminal(where, environ)):
            return _alone(f"{where.name}.{where.index}", unique, environ)
        return where
    if job:
        _check_shell(job, environ, alone=alone)
    name = f"{job}.batch" if job else f"local-{unique}"
    return _alone(name, unique, environ)


def _alone(name: str, unique: str, environ: Mapping[str, str]) -> Allocation:
    place = Place(index=0, node=0, host=own_name(environ))
    return Allocation(name, f"{name} {unique}", (place,), 0)


def _has_only_terminal(where: Allocation, environ: Mapping[str, str]) -> bool:
    """Return whether hpclaunch was typed in the shell of `srun --pty`. Raises UsageError if the
    step has several nodes.

    Only the first task of such a step has a terminal; the shells of the others end at once. An
    interactive shell runs each command in a process group of its own; srun and scripts do not.
    """
    if "SLURM_PTY_PORT" not in environ or os.getpgrp() == os.getsid(0):
        return False
    try:
        os.close(os.open("/dev/tty", os.O_RDWR))
    except OSError:
        return False  # a task of another step, which was started from that shell
    if where.nodes > 1:
        raise UsageError(
            f"step {where.name} has {where.nodes} nodes, but only its first task runs this shell: "
            "prefix with srun --overlap (or, to train on this node alone, use hpclaunch "
            "--standalone)"
        )
    return True


def _check_job(environ: Mapping[str, str]) -> None:
    """Raise UsageError if the variables belong to another job: a container may have kept them."""
    mine, job = own_step(), environ["SLURM_JOB_ID"]
    if mine is not None and mine.job not in (job, *_components(environ)):
        raise UsageError(
            f"SLURM_JOB_ID is {job}, but this process belongs to step {mine.job}.{mine.step}: use "
            f"srun to start it in job {job}, or unset Slurm's variables (unset ${{!SLURM_@}})"
        )


def step_without_variables() -> str:
    """Return the step that this process is a task of, by its cgroup and parents; "" if none."""
    mine = own_step()
    return "" if mine is None or not mine.step.isdecimal() else f"{mine.job}.{mine.step}"


def _check_shell(job: str, environ: Mapping[str, str], *, alone: bool) -> None:
    """Raise UsageError if this shell is not on the only node of the job. Without srun, a shell is
    on one node only, and salloc's may be on a login node.
    """
    nodes, components = environ.get("SLURM_JOB_NUM_NODES", "1"), len(_components(environ))
    srun = f"srun --het-group=0-{components - 1}" if components else "srun"
    if (nodes != "1" or components) and not alone:
        _check_not_over(job, environ)
        parts = f"{components} components" if components else f"{nodes} nodes"
        raise UsageError(
            f"job {job} has {parts}, but hpclaunch was started on one of them only: prefix "
            f"with {srun} (or, to train on this node alone, use hpclaunch --standalone)"
        )
    if "SLURMD_NODENAME" in environ:
        return
    try:
        hosts = expand(environ.get("SLURM_JOB_NODELIST", ""))
    except ValueError:
        return  # nothing to go by
    here = socket.gethostname()
    if here not in hosts and here.partition(".")[0] not in hosts:
        _check_not_over(job, environ)
        raise UsageError(
            f"this shell is on {here}, which is not a node of job {job}: prefix with {srun}"
        )


def _check_not_over(job: str, environ: Mapping[str, str]) -> None:
    """Raise UsageError if the job is over: a shell, in tmux for example, has kept its variables."""
    try:
        jobs, complaint = slurm_steps.jobs_of(f"--jobs={job}", slurm_steps.environment(environ))
    except OSError:
        return  # nothing to go by
    if not jobs and (not complaint or "Invalid job id" in complaint):
        raise UsageError(
            f"SLURM_JOB_ID is {job}, but that job is over: unset SLURM_JOB_ID to use this machine "
            "without Slurm"
        )


def _of_step(environ: Mapping[str, str], run_id: str) -> Allocation:
    try:
        hosts = expand(environ["SLURM_STEP_NODELIST"])
        tasks = tasks_per_node(environ["SLURM_STEP_TASKS_PER_NODE"])
        local = int(environ["SLURM_LOCALID"])
        node = int(environ["SLURM_NODEID"])
        if len(hosts) != len(tasks):
            raise ValueError(f"{len(hosts)} hosts, but task counts for {len(tasks)}")
        mine = environ.get("SLURMD_NODENAME")
        if mine in hosts:
            node = hosts.index(mine)
        places = tuple(
            Place(index, node, host)
            for index, (node, host) in enumerate(
                (n, host) for n, host in enumerate(hosts) for _ in range(tasks[n])
            )
        )
        if not (0 <= node < len(hosts) and 0 <= local < tasks[node]):
            raise ValueError(f"task {local} of node {node} is not part of it")
        index = sum(tasks[:node]) + local
        name = f"{_job(environ)}.{environ['SLURM_STEP_ID']}"
        jobs = (environ["SLURM_JOB_ID"], _job(environ), environ.get("SLURM_ARRAY_JOB_ID"), "")
        own = "" if run_id in jobs else run_id  # many scripts give the job's id
        if own:
            name += "_" + re.sub(r"\W", "_", own)[:80]
        if before := slurm_steps.runs_before(environ):
            name += f".r{before}"
        task = int(environ.get("SLURM_PROCID") or index)
    except (KeyError, ValueError) as e:
        what = f"{e} is missing" if isinstance(e, KeyError) else e
        raise UsageError(
            f"the environment of this Slurm step makes no sense ({what}): start hpclaunch with "
            "srun, or unset the SLURM_ variables to run on this machine alone"
        ) from e
    return Allocation(name, f"{name} {own}" if own else name, places, index, task=task)


def ends_with_a_node(environ: Mapping[str, str]) -> bool:
    """Return whether Slurm would end this step when it finds a node down.

    Only the srun that has started the step shows this, by the lack of --no-kill. It is visible only
    where it runs, which is the first node for a batch script.
    """
    found = False
    for process in Path("/proc").glob("[0-9]*"):
        try:
            # Bytes: others may choose any name.
            if (process / "comm").read_bytes() != b"srun\n":
                continue
            words = (process / "cmdline").read_bytes().split(b"\0")
            theirs = (process / "environ").read_bytes().split(b"\0")
        except OSError:
            continue  # it has ended, or is another user's
        ours = os.fsencode(f"SLURM_JOB_ID={environ.get('SLURM_JOB_ID')}") in theirs
        launcher = _launcher(words)
        if not ours or launcher is None:
            continue
        # Only options of srun itself: those of the script may have other meanings.
        asked = {b"--no-kill", b"-k"} & set(words[:launcher])
        if asked or any(e.startswith(b"SLURM_NO_KILL=") for e in theirs):
            return False
        found = True
    return found


def _launcher(words: list[bytes]) -> int | None:
    """Return where the launcher is in srun's command line; None if it is not there."""
    for at, (before, word) in enumerate(pairwise(words), 1):
        is_option = word.startswith(b"-") or before in NAMING
        if not is_option and any(name in word for name in LAUNCHERS):
            return at
    return None


def _job(environ: Mapping[str, str]) -> str:
    """Return the job's id: the components of a heterogeneous job may have ids of their own."""
    return environ["SLURM_JOB_ID_HET_GROUP_0" if _components(environ) else "SLURM_JOB_ID"]


def _components(environ: Mapping[str, str]) -> list[str]:
    """Return the ids of a heterogeneous job's components; [] for any other job, even if it was
    submitted from within a heterogeneous one and has inherited these variables.
    """
    ids = [environ[name] for name in environ if name.startswith("SLURM_JOB_ID_HET_GROUP_")]
    return ids if environ.get("SLURM_JOB_ID") in ids else []


def expand(nodelist: str) -> list[str]:
    """Return the hosts of a list such as `n[01-03]-ib,gpu07`, in its order. Raises ValueError."""
    known = rf"(?:[\w.,-]|\[{NUMBERS}(?:,{NUMBERS})*\])+"
    is_known = re.fullmatch(known, nodelist, re.ASCII) is not None
    parts = re.findall(r"(?:[^,\[]|\[[^\]]*\])+", nodelist)  # between commas outside of brackets
    every = chain.from_iterable(map(_hosts, parts if is_known else ()))
    hosts = list(islice(every, MOST + 1))
    if not 0 < len(hosts) <= MOST:
        why = f"of more than {MOST} hosts" if hosts else "makes no sense"
        raise ValueError(f"host list {reprlib.repr(nodelist)} {why}")
    return hosts


def _hosts(part: str) -> Iterator[str]:
    """Yield the hosts of `a[1-2]b[3-4]c[5-6]` in Slurm's order: the last number changes first, then
    the first, then the second: a1b3c5, a1b3c6, a2b3c5, a2b3c6, a1b4c5, ... Raises ValueError.
    """
    words = re.split(r"[\[\]]", part)  # numbers are at odd indexes
    numbers = range(1, len(words), 2)
    return _filled(words, [*reversed(numbers[:-1]), *numbers[-1:]])


def _filled(words: Sequence[str], numbers: Sequence[int]) -> Iterator[str]:
    """Yield the words, joined, with each number of the ranges at these indexes. The number at the
    last of the indexes changes first.
    """
    if not numbers:
        yield "".join(words)
        return
    at, *others = numbers
    for low, _, high in (each.partition("-") for each in words[at].split(",")):
        for number in range(int(low), int(high or low) + 1):
            filled = f"{number:0{len(low)}d}"
            yield from _filled([*words[:at], filled, *words[at + 1 :]], others)


def tasks_per_node(text: str) -> list[int]:
    """Return the tasks of each node: [2, 2, 2, 1] for `2(x3),1`. Raises ValueError."""
    counts: list[int] = []
    total = 0
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if match is None:
            raise ValueError(f"tasks per node {reprlib.repr(text)}")
        tasks, times = int(match[1]), int(match[2] or 1)
        total += max(tasks, 1) * times  # a node without tasks counts as well
        if total > MOST:
            raise ValueError(f"tasks per node {reprlib.repr(text)}: more than {MOST}")
        counts += [tasks] * times
    return counts
