"""An agent's channels: to the agents that report to it, and to those that it reports to."""

from __future__ import annotations

import itertools
import math
import socket
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import TypeAlias

import zmq

from ..core.consensus.rotation import Rotation
from ..core.protocol import effects, events
from ..core.protocol.errors import UsageError
from ..core.protocol.messages import Message, Report
from ..core.protocol.model import HEAD, Allocation, Origin, Place, Trouble, with_place
from ..core.protocol.node_facts import MessageIgnored, NodeFact, PortTaken
from ..core.protocol.values import replace
from ..system.hosts import machines
from ..system.network import death_inquiries, route, wire, zmq_channel
from ..system.network.secret import VARIABLE, fingerprint
from ..system.shared.errands import Answer, Explain, Explained, Resolve, Resolved
from ..worker.fork_server_messages import PostOnDeath
from .adapter import Adapter, Fd, Performs
from .errands import Errands

FIRST_CHOICE = 3.0  # seconds in which only the user's address of the first head is tried
Post: TypeAlias = Callable[[PostOnDeath], None]  # has the fork server post a death notice


class Channels(Adapter):
    """Sends the core's messages, and makes events of what arrives.

    `addresses` are the resolved addresses of the first head, or [] if this is that head. `spare`
    are further addresses to try if the head does not answer there within FIRST_CHOICE. `address`
    is the one at which others reach this agent, or "" while it is unknown. `networks` are the
    addresses from which this node connects to others.
    """

    def __init__(
        self,
        where: Allocation,
        shared: bytes,
        addresses: Collection[str],
        record: Callable[[NodeFact], None],
        errands: Errands,
        *,
        spare: Collection[str] = (),
        address: str = "",
        networks: tuple[str, ...] = (),
    ) -> None:
        """Raises UsageError if this place is taken, or no port is free."""
        self.where = where
        self._record = record
        self._ignored: set[MessageIgnored] = set()  # recorded once each
        self._first = (*addresses, *spare)
        self._spare = tuple(spare)
        self._spare_at = time.monotonic() + FIRST_CHOICE  # when to try the spare addresses
        self.address, self.networks = address, networks
        self.context = zmq.Context()
        self._shared = shared
        self._errands = errands
        self._inquiries = death_inquiries.Inquiries(self.keys(HEAD).death_secret)
        self._notice: tuple[Post, str] | None = None  # of this incarnation
        # Agents to dial once their names are resolved, each with its lookup.
        self._looked_up: dict[int, object] = {}
        self.ends: dict[int, zmq_channel.MemberChannel] = {}  # to agents that get our reports
        self.server: zmq_channel.HeadChannel | None = None
        # Without a place: reserves the port at which a death notice of this agent would be posted.
        self._reserved: socket.socket | None = None
        self._claim: socket.socket | None = None  # keeps other agents from taking this place
        if where.has_place:
            self.server = self._listen()
        else:
            self._reserved = route.reserve_port()
        if where.index:
            self._dial(HEAD, addresses)

    @property
    def here(self) -> Place:
        return self.where.places[self.where.index]

    def _listen(self) -> zmq_channel.HeadChannel:
        index = self.where.index
        mine = self.keys(index)
        # Without the secret, nobody can predict this name and claim it first.
        self._claim = machines.claim(mine.head_public.decode())
        if self._claim is None:
            raise UsageError(
                f"another hpclaunch is already agent {index} of {self.where.name}: give each "
                "of several launches an --rdzv-id of its own, or an srun of its own"
            )
        death_inquiries.take_down(mine.death_secret, index, mine.ports)
        server = zmq_channel.HeadChannel(
            mine, len(self.where.places), wire.MAX_BYTES, me=index, context=self.context
        )
        chosen = self.where.endpoint[1] if self.where.endpoint else 0
        if index == HEAD and chosen not in (0, server.port):
            self._record(PortTaken(self.here.host, chosen, server.port))
        return server

    @property
    def port(self) -> int:
        """The port at which this agent listens, and at which its death notice is posted later."""
        if self.server is not None:
            return self.server.port
        assert self._reserved is not None, "an agent has a port, with or without a place"
        return int(self._reserved.getsockname()[1])

    @property
    def claim(self) -> str:
        """The scope in which only one start of this agent can live; "" if it is not known."""
        return "" if self._claim is None else machines.scope(self._claim)

    def leave_notice(self, post: Post, incarnation: str) -> None:
        """Prepare this agent's death notice, now and each time that it gets another place."""
        self._notice = post, incarnation
        index = self.where.index if self.where.has_place else None
        key = self.keys(self.where.index).death_secret
        post(death_inquiries.own_notice(key, index, incarnation, self.port))

    def keys(self, agent: int) -> zmq_channel.Keys:
        """Return the keys and ports of an agent.

        Every agent that can lead has the port that the user has chosen, each on its own node.
        """
        where = self.where
        chosen = where.is_step and agent in Rotation(where.places)
        port = where.endpoint[1] if where.endpoint and (chosen or agent == HEAD) else 0
        return zmq_channel.derive(self._shared, where.identity, port, agent)

    def _all(self) -> list[zmq_channel.Channel]:
        return [*([self.server] if self.server else []), *self.ends.values()]

    # Effects

    def performs(self) -> Performs:
        return {
            effects.Send: lambda effect: self.send(effect.to, effect.message),
            effects.Dial: lambda effect: self.dial(effect.agents, effect.addresses),
            effects.TakePlace: self._take_place,
            effects.Probe: self.probe,
            effects.Diagnose: self._diagnose,
        }

    def _take_place(self, effect: effects.TakePlace) -> list[events.Event]:
        """Become the agent of this place."""
        host, index = self.here.host, effect.index
        places = with_place(self.where.places, index, stand_in=self.where.index)
        self.where = replace(self.where, places=places, index=index, has_place=True)
        self.dial([], [])
        self.dial([HEAD], [""])
        try:
            self.server = self._listen()
        except UsageError as e:
            trouble = Trouble(Origin.USAGE, f"on {host}: {e}")
            return [events.TroubleFound(trouble)]
        if self._reserved is not None:
            self._reserved.close()
            self._reserved = None
        if self._notice is not None:
            self.leave_notice(*self._notice)
        return [events.PlaceTaken(self.port)]

    def dial(self, agents: Sequence[int], addresses: Sequence[str]) -> None:
        """Connect to these agents only. A host without an address is looked up first."""
        known = dict(zip(agents, addresses, strict=True))
        for agent in [a for a in self.ends if a not in agents]:
            self.ends.pop(agent).close()
        for agent in self._looked_up.keys() - set(agents):
            del self._looked_up[agent]
        for agent in set(agents) - self.ends.keys():
            place = self.where.places[agent]
            if place.node == self.here.node:
                self._dial(agent, [route.LOOPBACK])
            elif agent == HEAD:
                self._dial(agent, self._first)
            elif address := known[agent]:
                self._looked_up.pop(agent, None)
                self._dial(agent, [address])
            elif agent not in self._looked_up:
                self._resolve(agent)

    def _resolve(self, agent: int) -> None:
        self._looked_up[agent] = lookup = object()
        resolve = Resolve(self.where.places[agent].host)
        self._errands.run(resolve, partial(self._resolved, agent, lookup))

    def _resolved(self, agent: int, lookup: object, answer: Answer | None) -> list[events.Event]:
        if agent not in self._looked_up:
            return []  # it is connected, or is not to be dialled any longer
        if isinstance(answer, Resolved) and answer.addresses:  # perhaps of an earlier lookup
            del self._looked_up[agent]
            self._dial(agent, answer.addresses)
        elif self._looked_up[agent] is lookup:
            del self._looked_up[agent]
            if answer is not None:  # otherwise the next Dial resolves it again
                self._resolve(agent)  # not at once: the errand has paused
        return []

    def _dial(self, agent: int, addresses: Collection[str]) -> None:
        index = self.where.index if self.where.has_place else None
        self.ends[agent] = zmq_channel.MemberChannel(
            self.keys(agent), index, addresses, wire.MAX_BYTES, to=agent, context=self.context
        )

    def send(self, to: int, message: Message) -> None:
        """Send a report to an agent that was dialled, or an order to one that has dialled here."""
        channel = self.ends.get(to) if isinstance(message, Report) else self.server
        # Before HeadReached, the core does not know the address to put into a report.
        if channel is not None and (channel is self.server or channel.reached):
            channel.send(to, wire.encode(message))

    def probe(self, effect: effects.Probe) -> None:
        if effect.port:
            targets = [(effect.address or route.LOOPBACK, effect.port)]
        else:
            end = self.ends.get(effect.agent)
            targets = [] if end is None else end.targets
        what = (effect.agent, targets, time.monotonic(), effect.incarnation)
        self._inquiries.begin(*what, number=effect.number)

    # Events

    def fds(self) -> Iterable[Fd]:
        for channel in self._all():
            yield from channel.sockets
        yield self._inquiries.fileno()

    def deadline(self) -> float:
        spare_at = self._spare_at if self._spare else math.inf
        return min(self._inquiries.next_deadline(), spare_at)

    def ready(self, fds: Collection[Fd], now: float) -> list[events.Event]:
        self._try_spare(now)
        found: list[events.Event] = []
        for channel in self._all():
            for item in channel.receive(fds):
                found += self._read(channel, item)
        found += itertools.starmap(events.AgentGone, self._inquiries.receive(now))
        return found

    def _try_spare(self, now: float) -> None:
        """Dial the spare addresses if the first head has not been reached within FIRST_CHOICE."""
        if not self._spare:
            return
        first = self.ends.get(HEAD)
        if first is None or first.reached:
            self._spare = ()
        elif now >= self._spare_at:
            first.connect(self._spare)
            self._spare = ()

    def _diagnose(self, effect: effects.Diagnose) -> list[events.Event]:
        """Find out why the others do not answer. The event Diagnosed follows, now or later."""
        known = self._diagnosis()
        if known or not self._first:
            return [events.Diagnosed(known, effect.number)]
        host, ports = self.where.places[HEAD].host, tuple(self.keys(HEAD).ports)
        explain = Explain(host, self._first, ports)
        self._errands.run(explain, partial(_explained, effect.number))
        return []

    def _read(self, channel: zmq_channel.Channel, item: zmq_channel.Item) -> Iterator[events.Event]:
        reported_to = channel is self.server
        if isinstance(item, zmq_channel.Closed):
            kind = events.PeerClosed if reported_to else events.HeadClosed
            yield kind(item.index)
        elif isinstance(item, zmq_channel.Reached):
            yield events.HeadReached(item.index, item.address, self._own_address(item))
        else:
            try:
                message = _with_origin(wire.decode(item.data), item.address)
                yield events.Received(item.sender, message, item.address)
            except wire.VersionError as e:
                if self.server is not None and reported_to:
                    self.server.send(item.sender, wire.hello())  # so that it reports this as well
                reason = f"{self.here.host} and {item.address} cannot work together: {e}"
                yield events.TroubleFound(Trouble(Origin.TROUBLE, reason))
            except wire.WireError as e:
                ignored = MessageIgnored(self.here.host, item.address, str(e))
                if ignored not in self._ignored:
                    self._ignored.add(ignored)
                    self._record(ignored)

    def _own_address(self, item: zmq_channel.Reached) -> str:
        """Return the address at which others reach this node; "" if it is not known yet."""
        if self.address or self.where.places[item.index].node == self.here.node:
            return self.address
        try:
            return route.source_address(item.address)
        except OSError:  # the route has just been lost
            return ""

    def _diagnosis(self) -> str:
        """Return why the others do not answer, or "" if that is not known here."""
        own = fingerprint(self._shared)
        if self.server is not None and self.server.refused:
            return (
                f"{self.server.refused} connections with another secret than this job's were "
                f"refused: is the secret file (here {own}) the same on all hosts?"
            )
        first = self.ends.get(HEAD)
        head = self.where.places[HEAD].host
        if first is not None and first.reached:
            return (
                f"hpclaunch on {head} answers, but has no place for this agent: does the job have "
                "more agents than --nnodes allows?"
            )
        if first is not None and first.is_refused:
            return (
                f"the program that answers on {head} does not know our secret (here {own}): copy "
                f"the same secret file to all hosts, or set {VARIABLE}"
            )
        return ""

    def close(self) -> None:
        """Close all channels. Return once the last messages are sent, or after a time limit."""
        for channel in self._all():
            channel.close()
        self._inquiries.close()
        for held in filter(None, (self._reserved, self._claim)):
            held.close()
        self.context.term()


def _explained(number: int, answer: Answer | None) -> list[events.Event]:
    return [events.Diagnosed(answer.text if isinstance(answer, Explained) else "", number)]


def _with_origin(message: Message, address: str) -> Message:
    """Add a report's source address, which may be that of a NAT router, to its node's networks."""
    if not isinstance(message, Report) or not message.networks or address in message.networks:
        return message
    return replace(message, networks=(*message.networks, address))
