"""Nodes that are set aside, since something there is not well."""

from __future__ import annotations

import shlex

from ..protocol.model import Job
from .roster import Peer, Roster


def announce(peer: Peer, job: Job) -> str:
    """And what the administrator of the cluster might note, ready to be pasted."""
    said = f"{peer.host} is set aside: {peer.unfit}"
    if not job.slurm_id:
        return said
    line = for_administrator(peer.host, peer.unfit, job.slurm_id)
    return f"{said}\n  for the administrator: {line}"


def cordon_host(roster: Roster, host: str) -> str:
    """Go on without a node whose workers alone have failed in the last rounds."""
    for peer in roster:
        if peer.host == host:
            peer.cordoned = "its workers, and no others, have failed again and again"
    roster.changed()
    return f"{host} is set aside: its workers have failed again, and there is a spare"


def for_administrator(host: str, why: str, job: str) -> str:
    """A line to paste into a shell on the cluster. It is never run from here: whether a node is
    drained is not for a job to say.
    """
    comment = " ".join(f"job {job}: {why}".split())
    return f"scontrol update NodeName={shlex.quote(host)} Comment={shlex.quote(comment)}"
