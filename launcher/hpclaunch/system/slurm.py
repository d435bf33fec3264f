"""What Slurm tells about the step that this process is a task of."""

from __future__ import annotations

import re
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from hpclaunch.core.errors import UsageError
from hpclaunch.core.model import Place

SCONTROL_TIMEOUT = 10.0  # seconds


@dataclass(frozen=True, slots=True)
class Allocation:
    """Where this agent stands, and with whom."""

    name: str  # "<job>.<step>", or "local-<time>-<pid>" without Slurm
    identity: str  # what the keys derive from: differs for every start of a job
    places: tuple[Place, ...]
    index: int


def in_step(environ: Mapping[str, str]) -> bool:
    """Whether srun started this process. The batch script has no step variables."""
    return "SLURM_STEP_ID" in environ and "SLURM_STEP_NODELIST" in environ


def speaks_for_step(environ: Mapping[str, str]) -> bool:
    """Whether this task should print what all tasks of the step would print alike."""
    return environ.get("SLURM_PROCID", "0") == "0" or not in_step(environ)


def allocation(environ: Mapping[str, str], *, unique: str) -> Allocation:
    """Reads the environment of a step; `unique` names this start where there is none."""
    job = environ.get("SLURM_JOB_ID")
    if in_step(environ):
        return _of_step(environ)
    if job and (nodes := environ.get("SLURM_JOB_NUM_NODES", "1")) != "1":
        raise UsageError(
            f"job {job} has {nodes} nodes, but hpclaunch was started on one of them only: prefix "
            "with srun"
        )
    name = f"{job}.batch" if job else f"local-{unique}"
    place = Place(index=0, node=0, host=socket.gethostname())
    return Allocation(name, f"{name} {unique}", (place,), 0)


def _of_step(environ: Mapping[str, str]) -> Allocation:
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
        index = sum(tasks[:node]) + local
        if not (0 <= node < len(hosts) and 0 <= local < tasks[node]):
            raise ValueError(f"task {local} of node {node} is not part of it")
        name = f"{environ['SLURM_JOB_ID']}.{environ['SLURM_STEP_ID']}"
        if requeued := int(environ.get("SLURM_RESTART_COUNT", "0")):
            name += f".r{requeued}"
    except (KeyError, ValueError) as e:
        what = f"{e} is missing" if isinstance(e, KeyError) else e
        raise UsageError(
            f"the environment of this Slurm step makes no sense ({what}): start hpclaunch with "
            "srun, or unset the SLURM_ variables to run on this machine alone"
        ) from e
    return Allocation(name, name, places, index)


def expand(nodelist: str) -> list[str]:
    """`n[1-3],gpu07` -> hosts, in Slurm's order."""
    if not nodelist or nodelist.count("[") != nodelist.count("]"):
        raise ValueError(f"host list {nodelist!r}")
    if not re.search(r"[\[,]", nodelist):
        return [nodelist]
    command = ["scontrol", "show", "hostnames", nodelist]
    try:
        shown = subprocess.run(
            command, capture_output=True, text=True, timeout=SCONTROL_TIMEOUT, check=True
        )
        return shown.stdout.split()
    except (OSError, subprocess.SubprocessError):
        return _expand_here(nodelist)


def _expand_here(nodelist: str) -> list[str]:
    """Without scontrol, as inside most containers. Keeps the order, which NodeSet would sort."""
    from ClusterShell.NodeSet import NodeSet, NodeSetException

    hosts: list[str] = []
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", nodelist):
        try:
            hosts += NodeSet(part)
        except NodeSetException as e:
            raise ValueError(f"host list {nodelist!r}") from e
    return hosts


def tasks_per_node(text: str) -> list[int]:
    """`2(x3),1` -> [2, 2, 2, 1]."""
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if match is None:
            raise ValueError(f"tasks per node {text!r}")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts
