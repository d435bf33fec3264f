"""Cordoned nodes: something is wrong there, so no workers are started on them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from ..protocol.model import Job
from ..protocol.wording import some
from .roster import NAMES, Peer, Roster

AGAIN = "its workers, and no others, have failed again and again"
SLOW = "the others have waited for its workers, step after step"
DRAINING = "Slurm drains it"


class Cordon:
    """Tells the user of each cordoned node, once."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._announced: set[int] = set()

    def announce(self, peer: Peer) -> list[str]:
        """Return the line that tells the user why the agent's node is cordoned, with a command for
        the cluster's administrator; [] if it is not cordoned for good, or was announced before.
        """
        if not peer.unfit or self.job.alone or peer.place.node in self._announced:
            return []
        self._announced.add(peer.place.node)
        said = f"{peer.host} is cordoned: {peer.unfit}"
        if self.job.slurm_id:
            line = for_administrator(peer.host, peer.unfit, self.job.slurm_id)
            said += f"\n  for the administrator: {line}"
        return [said]


def cordon(roster: Roster, host: str) -> str:
    """Cordon a node whose workers alone have failed in the last rounds. Returns the line for the
    user.
    """
    _cordon(roster, host, AGAIN)
    return f"{host} is cordoned: its workers have failed again, and there is a spare"


def relieve(roster: Roster, host: str) -> str:
    """The same for one with a straggler, for which a spare is there."""
    _cordon(roster, host, SLOW)
    return f"ending the round: a spare takes the place of {host}, for whose workers the others wait"


def relieve_drained(roster: Roster, hosts: Sequence[str]) -> str:
    """The same for nodes that Slurm drains."""
    for host in hosts:
        _cordon(roster, host, DRAINING)
    place = "a spare takes the place" if len(hosts) == 1 else "spares take the places"
    return f"{place} of {some(hosts, NAMES)}, which Slurm drains"


def _cordon(roster: Roster, host: str, why: str) -> None:
    for peer in roster:
        if peer.host == host:
            peer.cordoned = why
    roster.changed()


def uncordon(roster: Roster) -> None:
    """Let all nodes take part again whose workers have failed, or were slow: too few others are
    left. Nodes that are unfit stay cordoned.
    """
    for peer in roster:
        peer.cordoned = ""
    roster.changed()


def at_the_end(roster: Roster) -> list[str]:
    """Remind the user at the end of a long job: one line for each node that was cordoned."""
    unfit = {p.host: p.unfit for p in roster if p.unfit}
    return [
        f"the job has ended without {host}, which was cordoned: {unfit[host]}" for host in unfit
    ]


def for_administrator(host: str, why: str, job: str) -> str:
    """Return a command to paste into a shell on the cluster. We never run it ourselves: whether to
    drain a node is for the administrator to decide.
    """
    comment = " ".join(f"job {job}: {why}".split())
    return f"scontrol update NodeName={shlex.quote(host)} Comment={shlex.quote(comment)}"
