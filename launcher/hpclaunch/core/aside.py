"""Nodes that are set aside, since something there is not well."""

from __future__ import annotations

import shlex

from .model import Job
from .roster import Peer


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
