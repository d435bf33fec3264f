"""Nodes that are set aside, since something there is not well."""

from __future__ import annotations

import shlex

from .model import EXIT_LOST, Job, Verdict
from .roster import Peer, Roster, hosts_of


def announce(peer: Peer, job: Job) -> str:
    """And what the administrator of the cluster might note, ready to be pasted."""
    said = f"{peer.host} is set aside: {peer.unfit}"
    if not job.slurm_id:
        return said
    line = for_administrator(peer.host, peer.unfit, job.slurm_id)
    return f"{said}\n  for the administrator: {line}"


def for_administrator(host: str, why: str, job: str) -> str:
    """A line to paste into a shell on the cluster. It is never run from here: whether a node is
    drained is not for a job to say.
    """
    comment = " ".join(f"job {job}: {why}".split())
    return f"scontrol update NodeName={shlex.quote(host)} Comment={shlex.quote(comment)}"


def too_few(roster: Roster, job: Job, restarts: int) -> Verdict | None:
    """None while enough nodes are left."""
    left = len({p.place.node for p in roster.fit})
    fewest = job.fewest or job.nodes
    if left >= fewest:
        return None
    unfit = [p for p in roster if p.unfit]
    why = f"{hosts_of(unfit)}: {unfit[0].unfit}"
    if job.nodes == 1:
        reason = f"{why} (--health off starts in spite of it)"
    else:
        reason = f"{why}; {left} of {job.nodes} nodes are left, and the job needs {fewest}"
        if fewest == job.nodes:
            reason += f" (--nnodes {max(1, left)}:{job.nodes} goes on without those set aside)"
    return Verdict(EXIT_LOST, reason, restarts=restarts)
