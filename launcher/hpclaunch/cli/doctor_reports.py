"""The doctor's reports: each task of a step sends its findings to the first one, which prints all.

The channel is like that of the agents, but with other keys, so that the doctor and a launch in the
same step cannot connect.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Container, Iterable
from concurrent.futures import Future
from dataclasses import replace

import msgspec
import zmq

from hpclaunch.core.health.findings import Finding, Grade
from hpclaunch.core.health.task_reports import TaskReport, clocks
from hpclaunch.core.protocol.errors import UsageError
from hpclaunch.core.protocol.model import HEAD, Allocation
from hpclaunch.system.network import reachability, route, secret, zmq_channel
from hpclaunch.system.shared import packing

from .doctor_host import ATTEMPTS

RENDEZVOUS = "rendezvous"  # the name of the check
MAX_BYTES = 1 << 16
REPEAT = 1.0  # seconds between two attempts to report
TICK = 0.1  # seconds between two checks whether `examine` has ended
PARTING = 5.0  # seconds for the last tasks to get their answer
RECEIVED = b"received"  # the first task's answer to a report


def keys_of(where: Allocation, shared: bytes) -> zmq_channel.Keys:
    return zmq_channel.derive(shared, f"{where.identity} doctor")


def collect(
    where: Allocation, shared: bytes, examine: Callable[[], TaskReport], timeout: float
) -> tuple[list[TaskReport], list[Finding]]:
    """Run `examine` on the first task's host, and return its report, then those of the other tasks,
    and the findings about who connected and about the clocks.

    `examine` runs in a thread, so that tasks that finish earlier need not wait for it. Tasks that
    have not reported when it ends have `timeout` seconds more.
    """
    places = where.places
    try:
        channel = zmq_channel.HeadChannel(keys_of(where, shared), len(places), MAX_BYTES)
    except UsageError as e:  # no port is free
        return [examine()], [Finding(RENDEZVOUS, str(e), Grade.FAIL)]
    own = _in_a_thread(examine)
    reports: dict[int, TaskReport] = {}
    skews: list[tuple[str, float]] = []
    present: set[int] = set()  # tasks that have reported and are still connected
    awaited = set(range(len(places))) - {HEAD}
    deadline = math.inf
    while not (examined := own.done()) or reports.keys() < awaited or present:
        now = time.monotonic()
        if examined:
            more = PARTING if reports.keys() == awaited else timeout
            deadline = min(deadline, now + more)
            if now >= deadline:
                break
        ready = _wait(channel, deadline - now if examined else TICK)
        for item in channel.receive(ready):
            if isinstance(item, zmq_channel.Closed):
                present.discard(item.index)
            elif isinstance(item, zmq_channel.Arrived):
                with contextlib.suppress(msgspec.MsgspecError):  # from another version
                    report = packing.unpack(item.data, TaskReport)
                    if item.sender not in reports:
                        reports[item.sender] = report
                        skews.append((report.host, report.clock - time.time()))
                    present.add(item.sender)
                    channel.send(item.sender, RECEIVED)
    missing = dict.fromkeys(places[i].host for i in sorted(awaited - reports.keys()))
    here = f"{places[HEAD].host}, port {channel.port}"
    rendezvous = Finding(RENDEZVOUS, f"all {len(places)} tasks connected to {here}")
    if missing:
        found = f"no connection from {folded(missing)} to {here} within {timeout:.0f} s"
        if channel.refused:
            found += f"; {channel.refused} connections without our secret were refused"
        advice = (
            "read the doctor's output there; causes are another secret file, a firewall, an "
            "address in the wrong network, or a host that is cut off"
        )
        rendezvous = Finding(RENDEZVOUS, found, Grade.FAIL, advice)
    channel.close()
    in_order = [own.result(), *(report for _, report in sorted(reports.items()))]
    return in_order, [rendezvous, *([clocks(skews)] if skews else [])]


def _in_a_thread(examine: Callable[[], TaskReport]) -> Future[TaskReport]:
    """Run `examine` in a thread that does not keep this process from ending."""
    future: Future[TaskReport] = Future()

    def run() -> None:
        try:
            future.set_result(examine())
        except BaseException as e:
            future.set_exception(e)

    threading.Thread(target=run, daemon=True).start()
    return future


def send(where: Allocation, shared: bytes, report: TaskReport, timeout: float) -> Finding | None:
    """Send this task's report to the first one. Return None once it has arrived, or a finding that
    says why the first task was not reached.
    """
    head = where.places[HEAD]
    near = where.places[where.index].node == head.node
    try:
        addresses = [route.LOOPBACK] if near else route.resolve_patiently(head.host, ATTEMPTS)
    except OSError:
        why = f"not tried: {head.host} has no address here"
        return Finding(RENDEZVOUS, why, Grade.FAIL, "see the route")
    keys = keys_of(where, shared)
    mine = secret.fingerprint(shared)
    advice = f"compare the secret's fingerprint, here {mine}, with that on {head.host}"
    channel = zmq_channel.MemberChannel(keys, where.index, addresses, MAX_BYTES)
    try:
        if _is_received(channel, report, timeout):
            return None
        if channel.reached:
            why = f"the doctor on {head.host} was reached, and did not answer"
        elif channel.refused:
            why = f"the program that answers on {head.host} does not know our secret"
        else:
            found = reachability.answers(addresses, keys.ports)
            why = reachability.in_words(head.host, found)
            if reachability.is_cut_off(found):
                advice = (
                    f"see whether {head.host} is up; all nodes of a job must reach each other on "
                    "all TCP ports from 1024"
                )
    finally:
        channel.close()
    return Finding(RENDEZVOUS, why, Grade.FAIL, advice)


def _is_received(channel: zmq_channel.MemberChannel, report: TaskReport, timeout: float) -> bool:
    """Send the report again and again until the first task has answered."""
    send_at = time.monotonic()
    deadline = send_at + timeout
    while (now := time.monotonic()) < deadline:
        if now >= send_at:
            channel.send(HEAD, packing.pack(replace(report, clock=time.time())))
            send_at = now + REPEAT
        ready = _wait(channel, min(send_at, deadline) - now)
        for item in channel.receive(ready):
            if isinstance(item, zmq_channel.Arrived):
                return True
            if isinstance(item, zmq_channel.Reached):
                send_at = 0.0
    return False


def _wait(channel: zmq_channel.Channel, seconds: float) -> Container[object]:
    """Return the sockets that have become readable within so many seconds."""
    polled = [(socket, zmq.POLLIN) for socket in channel.sockets]
    return dict(zmq.zmq_poll(polled, timeout=math.ceil(max(0.0, seconds) * 1000)))


def folded(hosts: Iterable[str]) -> str:
    """Fold host names as Slurm does: n1, n2, n3 -> n[1-3]."""
    from ClusterShell.NodeSet import NodeSet, NodeSetException

    names = list(hosts)
    try:
        return str(NodeSet.fromlist(names))
    except NodeSetException:
        return ",".join(names)
