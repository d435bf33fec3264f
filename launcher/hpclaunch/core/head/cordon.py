"""Nodes that are cordoned: something is not well there, and no workers are started on them."""

from __future__ import annotations

import shlex

from ..protocol.model import Job
from .roster import Peer, Roster


class Cordon:
    """What the user is told of cordoned nodes, once for each."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._announced: set[int] = set()

    def announce(self, peer: Peer) -> list[str]:
        """And what the administrator of the cluster might note, ready to be pasted."""
        if not peer.unfit or self.job.alone or peer.place.node in self._announced:
            return []
        self._announced.add(peer.place.node)
        said = f"{peer.host} is cordoned: {peer.unfit}"
        if self.job.slurm_id:
            line = for_administrator(peer.host, peer.unfit, self.job.slurm_id)
            said += f"\n  for the administrator: {line}"
        return [said]


def cordon(roster: Roster, host: str) -> str:
    """A node whose workers, and no others, have failed in the last rounds. What is said of it."""
    for peer in roster:
        if peer.host == host:
            peer.cordoned = "its workers, and no others, have failed again and again"
    roster.changed()
    return f"{host} is cordoned: its workers have failed again, and there is a spare"


def uncordon(roster: Roster) -> None:
    """All that may be well after all: they are better than nothing."""
    for peer in roster:
        peer.cordoned = ""
    roster.changed()


def for_administrator(host: str, why: str, job: str) -> str:
    """A line to paste into a shell on the cluster. It is never run from here: whether a node is
    drained is not for a job to say.
    """
    comment = " ".join(f"job {job}: {why}".split())
    return f"scontrol update NodeName={shlex.quote(host)} Comment={shlex.quote(comment)}"
