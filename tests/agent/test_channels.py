"""All channels of agents with real sockets: messages are sent, and received ones become events."""

import contextlib
import os
import socket
import threading
import time
from functools import partial
from types import SimpleNamespace

import psutil
import pytest
import zmq

from hpclaunch.agent.channels import Channels
from hpclaunch.agent.errands import Errands
from hpclaunch.core.protocol import effects, events
from hpclaunch.core.protocol.messages import Order, PlaceGiven, Report
from hpclaunch.core.protocol.model import Allocation, Goal, Phase, Place
from hpclaunch.core.protocol.values import replace
from hpclaunch.observe.console import words
from hpclaunch.system.network import wire
from hpclaunch.system.processes.fork_server_client import ForkServerClient
from hpclaunch.system.shared.errands import Resolved
from surroundings import free_port

SECRET = b"s" * 32
LIMIT = 120.0  # seconds; far more than any of this takes
HERE = "127.0.0.1"
TCP_THIN_LINEAR_TIMEOUTS = 16  # linux/tcp.h


class Agents:
    """Channels of several agents in this thread: all are served while one waits."""

    def __init__(self, count):
        self.recorded = []
        self.inboxes = {}
        self.identity = f"{os.getpid()} {time.monotonic_ns()}"  # unlike that of other tests
        self.places = tuple(Place(i, 0, HERE) for i in range(count))

    def start(self, index):
        return self.add(Allocation("71.0", self.identity, self.places, index))

    def add(self, where):
        addresses = [HERE] if where.index else []
        channels = Channels(where, SECRET, addresses, self.recorded.append, Errands(lambda _: True))
        self.inboxes[channels] = []
        return channels

    def end(self, channels):
        del self.inboxes[channels]
        channels.close()

    def until(self, channels, kind, speak=lambda: None):
        """Return the next event of a kind; meanwhile, call `speak` again and again."""
        end = time.monotonic() + LIMIT
        while time.monotonic() < end:
            speak()
            polled = [(fd, zmq.POLLIN) for each in self.inboxes for fd in each.fds()]
            fds = {fd for fd, _ in zmq.zmq_poll(polled, timeout=50)}
            for one, inbox in self.inboxes.items():
                inbox += one.ready(fds, time.monotonic())
            for event in self.inboxes[channels]:
                if isinstance(event, kind):
                    self.inboxes[channels].remove(event)
                    return event
        raise AssertionError(f"no {kind.__name__} within {LIMIT:.0f} s")

    def until_gone(self, channels, probe):
        """Probe an agent until it is found dead: its fork server may take longer to post the notice
        than an inquiry takes.
        """
        found = self.until(channels, events.AgentGone, lambda: channels.probe(probe))
        assert found.index == probe.agent


@contextlib.contextmanager
def death_notice_of(server):
    """Run the body while a dead agent's fork server posts the death notice for some seconds."""
    process = server._process
    ending = threading.Thread(target=server.close, kwargs={"in_order": False})
    ending.start()
    try:
        yield
    finally:
        process.kill()
        ending.join()


@pytest.fixture
def agents():
    agents = Agents(3)
    yield agents
    for channels in list(agents.inboxes):
        agents.end(channels)


def a_report(index, port=0):
    return Report(
        host=HERE,
        incarnation=f"a{index}",
        serial=1,
        nproc=1,
        address=HERE,
        head_address="",
        store_port=1,
        round=-1,
        phase=Phase.IDLE,
        exits=(),
        stop_signal=0,
        trouble=None,
        port=port,
    )


def an_order(index):
    return Order(term=0, serial=1, incarnation=f"a{index}", goal=Goal.WAIT, round=0)


def test_a_report_and_the_order_that_answers_it(agents):
    head, member = agents.start(0), agents.start(1)
    reached = agents.until(member, events.HeadReached)
    assert reached.index == 0
    report = a_report(1, member.port)
    heard = agents.until(head, events.Received, lambda: member.send(0, report))
    assert (heard.sender, heard.message, heard.address) == (1, report, HERE)
    heard = agents.until(member, events.Received, lambda: head.send(1, an_order(1)))
    assert (heard.sender, heard.message) == (0, an_order(1))


def test_a_report_names_its_source_address(agents):
    """The address may be that of a router that forwards other connections, too. One node needs no
    addresses."""
    head, member = agents.start(0), agents.start(1)
    agents.until(member, events.HeadReached)
    for networks, expected in [((), ()), (("10.0.0.2",), ("10.0.0.2", HERE)), ((HERE,), (HERE,))]:
        report = replace(a_report(1), networks=networks)
        member.send(0, report)
        assert agents.until(head, events.Received).message.networks == expected


def test_packets_that_a_stall_of_the_network_lost_are_repeated_soon(agents):
    """Both ends ask Linux for even intervals between retransmissions.

    By default, TCP doubles its pauses: after a stall of 2 s, it would wait for another 3 s.
    """
    head, member = agents.start(0), agents.start(1)
    report = a_report(1, member.port)
    agents.until(head, events.Received, lambda: member.send(0, report))
    agents.until(member, events.Received, lambda: head.send(1, an_order(1)))
    both_ends = [
        c.fd
        for c in psutil.Process().net_connections("tcp")
        if c.status == psutil.CONN_ESTABLISHED and head.port in (c.laddr.port, c.raddr.port)
    ]
    assert len(both_ends) == 2
    for end in both_ends:
        with socket.socket(fileno=os.dup(end)) as s:
            assert s.getsockopt(socket.IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS)


def test_another_head(agents):
    """Every agent listens. An agent dials the next head, and closes its end to the old one."""
    _, second, third = (agents.start(i) for i in range(3))
    third.dial([0, 1], ["", ""])
    assert sorted(third.ends) == [0, 1]
    heard = agents.until(second, events.Received, lambda: third.send(1, a_report(2)))
    assert heard.sender == 2
    third.dial([1], [HERE])
    assert list(third.ends) == [1]
    third.send(0, a_report(2))  # no connection is left
    heard = agents.until(third, events.Received, lambda: second.send(2, an_order(2)))
    assert heard.sender == 1


def test_both_ends_notice_that_the_other_has_ended(agents):
    head, member, other = (agents.start(i) for i in range(3))
    for one, index in ((member, 1), (other, 2)):
        report = partial(one.send, 0, a_report(index))
        while agents.until(head, events.Received, report).sender != index:
            pass  # the other agent has sent its report again
        agents.until(one, events.Received, partial(head.send, index, an_order(index)))
    agents.end(other)
    assert agents.until(head, events.PeerClosed).index == 2
    agents.end(head)
    assert agents.until(member, events.HeadClosed).index == 0


@pytest.mark.starts
def test_the_fork_server_of_a_dead_agent_confirms_its_death(agents):
    """The notice is at the port that the agent has reported, or at its other possible ports."""
    head, member, other = (agents.start(i) for i in range(3))
    port, server = other.port, ForkServerClient()
    other.leave_notice(server.send, "a2")
    agents.end(other)
    ending = threading.Thread(target=server.close, kwargs={"in_order": False})
    ending.start()
    agents.until_gone(head, effects.Probe(2, HERE, port, "a2"))
    member.dial([0, 2], ["", HERE])
    agents.until_gone(member, effects.Probe(2))
    again = agents.start(2)
    ending.join()  # the fork server has noticed the new agent
    assert again.port == port


@pytest.mark.starts
def test_a_dead_agent_without_a_place_is_confirmed(agents):
    """The agent does not know its index, but the head does."""
    head = agents.start(0)
    places = (*agents.places[:1], Place(1, 1, "any"))
    where = Allocation("71.0", agents.identity, places, 1, (HERE, head.port), has_place=False)
    other, server = agents.add(where), ForkServerClient()
    port = other.port
    other.leave_notice(server.send, "x1")
    agents.end(other)
    with death_notice_of(server):
        agents.until_gone(head, effects.Probe(1, HERE, port, "x1"))


@pytest.fixture
def looking(agents):
    """Return the channels of an agent that knows only names, and its pending lookups."""
    places, lookups = (Place(0, 0, "n0"), Place(1, 1, "n1")), []
    where = Allocation("71.0", agents.identity, places, 0)
    errands = SimpleNamespace(run=lambda errand, done: lookups.append((errand.host, done)))
    channels = Channels(where, SECRET, [], agents.recorded.append, errands)
    agents.inboxes[channels] = []
    return channels, lookups


def test_a_name_that_is_not_known_yet_is_looked_up_until_it_is(looking):
    channels, lookups = looking
    channels.dial([1], [""])
    for answer in (None, Resolved(2, ()), Resolved(3, (HERE,))):
        host, done = lookups.pop()
        assert (host, lookups, channels.ends) == ("n1", [], {})
        assert done(answer) == []
        channels.dial([1], [""])
    assert lookups == []
    assert channels.ends[1].targets[0][0] == HERE


def test_an_agent_that_is_dialled_anew_has_one_lookup(looking):
    channels, lookups = looking
    for _ in range(2):
        channels.dial([], [])
        channels.dial([1], [""])
    (_, early), (_, late) = lookups
    lookups.clear()
    early(Resolved(1, ()))
    assert lookups == []
    late(Resolved(2, ()))
    assert len(lookups) == 1


def test_an_agent_that_is_dialled_anew_is_reached_by_the_first_address_that_is_found(looking):
    """Candidates are dialled in turns, perhaps each for less time than a lookup takes."""
    channels, lookups = looking
    channels.dial([1], [""])
    channels.dial([], [])
    channels.dial([1], [""])
    (_, early), (_, late) = lookups
    early(Resolved(1, (HERE,)))
    end = channels.ends[1]
    late(Resolved(2, ()))
    assert (len(lookups), channels.ends) == (2, {1: end})


def test_an_agent_whose_address_becomes_known_is_dialled_at_once(looking):
    channels, lookups = looking
    channels.dial([1], [""])
    channels.dial([1], [HERE])
    end = channels.ends[1]
    (_, done) = lookups.pop()
    done(Resolved(1, ("192.0.2.7",)))
    assert channels.ends[1] is end


@pytest.mark.starts
def test_an_agent_takes_the_place_that_it_is_given(agents):
    """The agent reports with the index of that place; others reach it and find its death notice."""
    places = tuple(Place(i, i, f"m{i}") for i in range(3))
    where = Allocation("71.0", agents.identity, places, 1, (HERE, 0), has_place=False)
    head, other = agents.start(0), agents.add(where)
    heard = agents.until(head, events.Received, lambda: other.send(0, a_report(2)))
    assert heard.sender == 3
    head.send(3, PlaceGiven("a2", 2))
    assert agents.until(other, events.Received).message.index == 2
    before = other.port
    other.performs()[effects.TakePlace](effects.TakePlace(2))
    assert [place.host for place in other.where.places] == ["m0", "machine 1", "m1"]
    agents.until(other, events.HeadReached)
    heard = agents.until(head, events.Received, lambda: other.send(0, a_report(2)))
    while heard.sender == 3:  # sent before
        heard = agents.until(head, events.Received, lambda: other.send(0, a_report(2)))
    assert heard.sender == 2
    heard = agents.until(other, events.Received, lambda: head.send(2, an_order(2)))
    assert heard.sender == 0
    member = agents.start(1)
    member.dial([0, 2], ["", HERE])
    heard = agents.until(other, events.Received, lambda: member.send(2, a_report(1)))
    while heard.sender == 0:  # sent before
        heard = agents.until(other, events.Received, lambda: member.send(2, a_report(1)))
    assert heard.sender == 1
    port, server = other.port, ForkServerClient()
    assert port != before
    other.leave_notice(server.send, "a2")
    agents.end(other)
    with death_notice_of(server):
        agents.until_gone(member, effects.Probe(2))


def test_the_users_port_is_for_every_agent_that_may_lead(agents):
    places = tuple(Place(i, node, f"n{node}") for i, node in enumerate((0, 0, 1, 1)))
    port = free_port()
    step = Allocation("71.0", agents.identity, places, 0, (HERE, port))
    channels = agents.add(step)
    assert channels.port == port
    chosen = [channels.keys(agent).ports[0] == port for agent in range(4)]
    assert chosen == [True, False, True, False]
    again = Allocation("71.1", f"{agents.identity} again", places, 0, (HERE, port))
    assert agents.add(again).port != port
    (fact,) = agents.recorded
    assert words(fact).startswith(f"port {port} is in use on n0: hpclaunch listens on ")


def test_another_version_is_trouble_at_both_ends(agents):
    head, member = agents.start(0), agents.start(1)
    agents.until(member, events.HeadReached)
    foreign = wire.encode(a_report(1)).replace(b'"version":%d' % wire.VERSION, b'"version":1')
    found = agents.until(head, events.TroubleFound, lambda: member.ends[0].send(0, foreign))
    assert "install the same hpclaunch on all nodes" in found.trouble.reason
    while not agents.recorded:  # the answer may be on its way
        agents.until(head, events.Received, lambda: member.send(0, a_report(1)))
    (fact,) = agents.recorded
    # The head's answer is readable for the other version, but not for this one.
    assert words(fact) == f"ignored from {HERE}: {decode_error(wire.hello())}"


def test_junk_is_ignored(agents):
    """However often it arrives, it is recorded once."""
    head, member = agents.start(0), agents.start(1)
    agents.until(member, events.HeadReached)
    for _ in range(3):
        member.ends[0].send(0, b"junk")
    heard = agents.until(head, events.Received, lambda: member.send(0, a_report(1)))
    assert heard.sender == 1
    (fact,) = agents.recorded
    assert words(fact) == f"ignored from {HERE}: {decode_error(b'junk')}"


def decode_error(data):
    with pytest.raises(wire.WireError) as e:
        wire.decode(data)
    return str(e.value)
