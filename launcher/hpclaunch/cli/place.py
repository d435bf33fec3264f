"""This agent's allocation, from Slurm or torchrun's options, and notes on contradictions."""

from __future__ import annotations

import argparse
import re
import socket
from collections.abc import Mapping

from hpclaunch.core.placement import worker_environment
from hpclaunch.core.protocol.errors import UsageError
from hpclaunch.core.protocol.model import HEAD, Allocation
from hpclaunch.core.protocol.node_facts import LaunchNote, LaunchNoteKind
from hpclaunch.core.protocol.values import replace
from hpclaunch.system.hosts import machines, slurm
from hpclaunch.system.network import secret

STATIC_PORT, C10D_PORT = 29500, 29400  # torchrun's own defaults
MEETING_BACKENDS = (None, "static", "c10d")  # backends whose endpoint is on the first machine
SLURM_HONOURED = ("join_timeout", "last_call_timeout")  # keys of --rdzv-conf in a step
HONOURED = (*SLURM_HONOURED, "is_host")  # keys of --rdzv-conf without Slurm


def locate(
    options: argparse.Namespace, environ: Mapping[str, str], *, unique: str
) -> tuple[Allocation, list[LaunchNote]]:
    """Return the allocation, and what the user should know about it."""
    own, within = environ, worker_environment.is_within(environ)
    if within:
        environ = {}  # Slurm's variables describe the launcher whose worker this is
    step = slurm.in_step(environ)
    given = options.nnodes
    if options.standalone or (not step and given == (1, 1)):
        return _alone(environ, unique, step=step)
    several = given is not None and given[1] > 1
    named = options.rdzv_endpoint is not None or options.master_addr is not None
    if step or "SLURM_JOB_ID" in environ:
        where = slurm.allocation(environ, unique=unique, run_id=options.rdzv_id or "")
        if several and given[1] < where.nodes:
            where = where.led_from(_meeting_point(options)[1])
        # If a step of one task names a rendezvous endpoint, every machine has its own step.
        if not (where.alone and step and several and named):
            endpoint = _meeting_point(options)[1:]
            if any(endpoint) and options.rdzv_backend in MEETING_BACKENDS:
                where = replace(where, endpoint=endpoint)
            return where, _contradictions(options, environ, where)
    if several:
        return _machines(options, own, unique)
    if options.node_rank:
        raise UsageError(f"--node-rank {options.node_rank} needs --nnodes, the number of machines")
    where = slurm.allocation(environ, unique=unique)
    stray = "" if within else slurm.step_without_variables()
    note = LaunchNote(socket.gethostname(), LaunchNoteKind.NO_VARIABLES, {"step": stray})
    return where, [note] if stray else []


def _alone(
    environ: Mapping[str, str], unique: str, *, step: bool
) -> tuple[Allocation, list[LaunchNote]]:
    where = slurm.allocation(environ, unique=unique, alone=True)
    tasks = environ.get("SLURM_STEP_NUM_TASKS", "1")
    if not step or tasks == "1":
        return where, []
    first = where.name.endswith(".0")
    host = where.places[where.index].host
    note = LaunchNote(host, LaunchNoteKind.STANDALONE, {"tasks": int(tasks)})
    return where, [note] if first else []


def _contradictions(
    options: argparse.Namespace, environ: Mapping[str, str], where: Allocation
) -> list[LaunchNote]:
    """Return a note for each option that contradicts Slurm, whose value is used."""
    here = where.places[where.index]
    notes = _seen_by_head(options, environ, where) if where.index == HEAD else []
    notes += _seen_by_first_task(options, where) if where.task == 0 else []
    # An option with the same value on all nodes is wrong from the second node on: only the second
    # node reports it.
    if here.node > 1:
        return notes
    if options.node_rank not in (None, here.node, where.task):
        ranks = {"asked": options.node_rank, "given": here.node}
        notes.append(LaunchNote(here.host, LaunchNoteKind.NODE_RANK, ranks))
    own = options.local_addr
    if own and not machines.own_address(own, loopback=where.nodes == 1):
        notes.append(LaunchNote(here.host, LaunchNoteKind.LOCAL_ADDR, {"asked": own}))
    return notes


def _seen_by_head(
    options: argparse.Namespace, environ: Mapping[str, str], where: Allocation
) -> list[LaunchNote]:
    notes, nodes, host = [], where.nodes, where.places[HEAD].host
    # Scripts may count tasks, since torchrun counts each of its agents as a node.
    if options.nnodes is not None and options.nnodes[0] != len(where.places):
        fewest, most = options.nnodes
        said = ":".join(str(n) for n in dict.fromkeys(options.nnodes))
        if nodes < fewest:
            numbers: dict[str, str | int] = {"asked": said, "given": nodes}
            notes.append(LaunchNote(host, LaunchNoteKind.NODES, numbers))
        elif nodes > most:
            numbers = {"asked": said, "spares": nodes - most, "nodes": nodes}
            notes.append(LaunchNote(host, LaunchNoteKind.SPARES, numbers))
        if fewest < nodes and slurm.ends_with_a_node(environ):
            notes.append(LaunchNote(host, LaunchNoteKind.NO_KILL))
    return notes


def _seen_by_first_task(options: argparse.Namespace, where: Allocation) -> list[LaunchNote]:
    name, leads = where.places[where.index].host, where.places[HEAD].host
    option, host, _ = _meeting_point(options)
    if not host or _is_here(host, name) or host.partition(".")[0] == leads.partition(".")[0]:
        return []
    return [LaunchNote(name, LaunchNoteKind.ENDPOINT, {"option": option, "asked": host})]


def _meeting_point(options: argparse.Namespace) -> tuple[str, str, int]:
    """Return (option, host, port) of the endpoint that was given; "" and 0 for missing parts."""
    if options.rdzv_endpoint:
        return "--rdzv-endpoint", *_host_and_port(options.rdzv_endpoint, 0)
    return "--master-addr", options.master_addr or "", options.master_port or 0


def _is_here(host: str, name: str) -> bool:
    known = (name, name.partition(".")[0], socket.gethostname(), "localhost")
    return host in known or machines.is_local(host)


def _machines(
    options: argparse.Namespace, environ: Mapping[str, str], unique: str
) -> tuple[Allocation, list[LaunchNote]]:
    fewest, most = options.nnodes
    backend = options.rdzv_backend or "static"
    run_id, here = options.rdzv_id or "none", slurm.own_name(environ)
    name = f"local-{unique}" if options.rdzv_id is None else f"{plain(run_id)}-{unique}"
    if backend == "static":
        if options.rdzv_endpoint:
            host, port = _host_and_port(options.rdzv_endpoint, STATIC_PORT)
        else:
            # Agents with --node-rank and no address are all on this host, as torchrun assumes.
            numbered = "" if options.node_rank is None else "127.0.0.1"
            host, port = options.master_addr or numbered, options.master_port or STATIC_PORT
        if not host:
            raise UsageError(
                f"--nnodes {most} without Slurm: where do the machines meet? Add --node-rank R and "
                "--master-addr HOST, or --rdzv-backend c10d and --rdzv-endpoint HOST:PORT, or "
                "start hpclaunch with srun"
            )
        rank = options.node_rank or 0
        where = machines.fixed(rank, most, host, port, run_id=run_id, name=name, here=here)
    elif backend == "c10d":
        host, port = _host_and_port(options.rdzv_endpoint or "", C10D_PORT)
        if not host:
            raise UsageError("--rdzv-backend c10d needs --rdzv-endpoint HOST:PORT")
        head = _is_host(options.rdzv_conf or {})
        shared = secret.load_or_create(secret.secret_path(environ))
        where = machines.first_come(
            most, host, port, run_id=run_id, name=name, here=here, head=head, shared=shared
        )
    else:
        raise UsageError(
            f"--rdzv-backend {backend} is not needed and not supported: give --rdzv-backend c10d "
            "and --rdzv-endpoint HOST:PORT, with HOST one of the machines"
        )
    note = LaunchNote(
        where.places[where.index].host,
        LaunchNoteKind.MACHINES,
        {"asked": f"{fewest}:{most}", "most": most, "fewest": fewest},
    )
    return where, [note] if fewest < most and where.index == HEAD else []


def _host_and_port(endpoint: str, default: int) -> tuple[str, int]:
    """Parse `host`, `host:port` or `[v6]:port`. Port 0 means any."""
    match = re.fullmatch(r"(\[[^\]]+\]|[^:\[\]]*)(?::(\d{1,5}))?", endpoint.strip())
    if match is None or int(match[2] or 0) > 65535:
        raise UsageError(f"--rdzv-endpoint {endpoint!r} is not HOST:PORT")
    return match[1], int(match[2] or default)


def _is_host(conf: Mapping[str, str]) -> bool | None:
    said = conf.get("is_host")
    if said is None:
        return None
    is_host = said.lower() in ("1", "true", "t", "yes", "y")
    if not is_host and said.lower() not in ("0", "false", "f", "no", "n"):
        raise UsageError(f"--rdzv-conf is_host={said}: neither true nor false")
    return is_host


def plain(name: str) -> str:
    """Return a name that can be part of a path."""
    return re.sub(r"[^\w.-]", "_", name)[:80] or "_"
