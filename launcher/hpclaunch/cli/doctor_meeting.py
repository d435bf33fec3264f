"""How the doctor's tasks meet: over a channel like that of the agents, with the step's keys.

Each task sends the head what it has found. The head asks it once more, to see its clock. Once all
have answered or the time is over, the head tells everybody the exit code.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterable
from dataclasses import replace

import msgspec
import zmq

from hpclaunch.core.health.findings import Finding, Grade
from hpclaunch.core.health.visits import Call, Visit, clocks
from hpclaunch.core.protocol.model import HEAD, Allocation
from hpclaunch.system.network import reachability, route, secret, zmq_channel
from hpclaunch.system.shared import packing

MAX_BYTES = 1 << 16
REPEAT = 1.0  # seconds between two visits that nobody has answered
PARTING = 5.0  # seconds for the others to leave
ATTEMPTS = 2  # to resolve a name


def keys_of(where: Allocation, shared: bytes) -> zmq_channel.Keys:
    """Other keys than those of a launch in the same step: the two must not meet."""
    return zmq_channel.derive(shared, f"{where.identity} doctor")


# The head


class Meeting:
    """The head's side; create it early, since the others try until somebody answers."""

    def __init__(self, where: Allocation, shared: bytes) -> None:
        """UsageError when there is no port to listen on."""
        self.where = where
        self.channel = zmq_channel.HeadChannel(keys_of(where, shared), len(where.places), MAX_BYTES)
        self._present: set[int] = set()

    def hold(self, timeout: float) -> tuple[list[Visit], list[Finding]]:
        """The visits of all who came, and the findings about the meeting itself."""
        visits: dict[int, Visit] = {}
        skews: dict[int, float] = {}
        awaited = set(range(len(self.where.places))) - {HEAD}
        deadline = time.monotonic() + timeout
        while awaited - skews.keys() and (left := deadline - time.monotonic()) > 0:
            for sender, visit in self._visits(left):
                now = time.monotonic()
                visits[sender] = visit
                self._present.add(sender)
                if visit.echo and sender not in skews:
                    # The member read its clock half-way between our call and now.
                    skews[sender] = visit.clock - (time.time() - (now - visit.echo) / 2)
                elif sender not in skews:
                    self.channel.send(sender, packing.pack(Call(now)))
        findings = [self._who_came(awaited - visits.keys(), timeout)]
        if skews:
            places = self.where.places
            findings.append(clocks([(places[i].host, s) for i, s in skews.items()]))
        return [visit for _, visit in sorted(visits.items())], findings

    def _visits(self, left: float) -> list[tuple[int, Visit]]:
        _wait(self.channel, left)
        found = []
        for item in self.channel.receive():
            if isinstance(item, zmq_channel.Arrived):
                with contextlib.suppress(msgspec.MsgspecError):  # of another version
                    found.append((item.sender, packing.unpack(item.data, Visit)))
        return found

    def _who_came(self, missing: Iterable[int], timeout: float) -> Finding:
        places = self.where.places
        head = f"{places[HEAD].host}, port {self.channel.port}"
        hosts = list(dict.fromkeys(places[i].host for i in sorted(missing)))
        if not hosts:
            return Finding("meeting", f"all {len(places)} tasks met at {head}")
        found = f"nobody came from {folded(hosts)} to {head}, within {timeout:.0f} s"
        if self.channel.refused:
            found += f"; {self.channel.refused} connections without our secret were refused"
        advice = (
            "look at what the doctor says there: another secret file, a firewall, an address in "
            "the wrong network, or a host that is cut off"
        )
        return Finding("meeting", found, Grade.FAIL, advice)

    def close(self, code: int) -> None:
        """Returns once everybody who came has left, or PARTING is over.

        Closing with unread messages would cut the connections, and our last message with them.
        """
        word = packing.pack(Call(0.0, code))
        for index in self._present:
            self.channel.send(index, word)
        deadline = time.monotonic() + PARTING
        while self._present and (left := deadline - time.monotonic()) > 0:
            _wait(self.channel, left)
            for item in self.channel.receive():
                if isinstance(item, zmq_channel.Closed):
                    self._present.discard(item.index)
                elif isinstance(item, zmq_channel.Arrived):
                    self.channel.send(item.sender, word)
        self.channel.close()


# The others


def visit_head(
    where: Allocation, shared: bytes, visit: Visit, timeout: float
) -> tuple[int | None, Finding | None]:
    """(The exit code that the head tells, None); or (None, why the head was not met)."""
    head = where.places[HEAD]
    near = where.places[where.index].node == head.node
    try:
        addresses = [route.LOOPBACK] if near else route.resolve_patiently(head.host, ATTEMPTS)
    except OSError:
        found = f"not tried: {head.host} has no address here"
        return None, Finding("meeting", found, Grade.FAIL, "see the route")
    keys = keys_of(where, shared)
    channel = zmq_channel.MemberChannel(keys, where.index, addresses, MAX_BYTES)
    try:
        code = _stay(channel, visit, timeout)
        known = channel.reached or channel.refused
    finally:
        channel.close()
    if code is not None:
        return code, None
    if channel.reached:
        why = f"the doctor on {head.host} was reached, but did not come to an end"
    elif known:
        why = f"something answers on {head.host}, but does not know our secret"
    else:
        why = reachability.explain(head.host, addresses, keys.ports)
    mine = secret.fingerprint(shared)
    advice = f"compare the secret's fingerprint, here {mine}, with that on {head.host}"
    return None, Finding("meeting", why, Grade.FAIL, advice)


def _stay(channel: zmq_channel.MemberChannel, visit: Visit, timeout: float) -> int | None:
    """Visit repeatedly, and answer the head's calls, until it lets us go."""
    speak_at = time.monotonic()
    deadline = speak_at + timeout
    while (now := time.monotonic()) < deadline:
        if now >= speak_at:
            channel.send(HEAD, packing.pack(replace(visit, clock=time.time())))
            speak_at = now + REPEAT
        _wait(channel, min(speak_at, deadline) - now)
        for item in channel.receive():
            if isinstance(item, zmq_channel.Reached):
                # It may still be checking its own host, and then waiting for others.
                deadline = max(deadline, time.monotonic() + 2 * timeout)
                speak_at = 0.0
            elif isinstance(item, zmq_channel.Arrived):
                with contextlib.suppress(msgspec.MsgspecError):
                    call = packing.unpack(item.data, Call)
                    if call.code is not None:
                        return call.code
                    answer = replace(visit, clock=time.time(), echo=call.at)
                    channel.send(HEAD, packing.pack(answer))
    return None


def _wait(channel: zmq_channel.Channel, seconds: float) -> None:
    poller = zmq.Poller()
    for s in channel.sockets:
        poller.register(s, zmq.POLLIN)
    poller.poll(math.ceil(max(0.0, seconds) * 1000))


def folded(hosts: Iterable[str]) -> str:
    """n1, n2, n3 -> n[1-3], as Slurm writes it."""
    from ClusterShell.NodeSet import NodeSet, NodeSetException

    names = list(hosts)
    try:
        return str(NodeSet.fromlist(names))
    except NodeSetException:
        return ",".join(names)
