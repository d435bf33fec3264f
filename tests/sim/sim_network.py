"""The agents' network: connections of agents to those that they report to.

Each agent of the simulation has a number. It is also the agent's index in the job, but for agents
that get their places as they come: two of them may even have the same index, of two first heads.

It keeps no promise that the protocol does not ask for: a message may be late, twice, after a
younger one, or lost. A connection that is closed is reported to both ends, a cut to neither.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from hpclaunch.core.protocol.effects import Probe
from hpclaunch.core.protocol.events import AgentGone, HeadClosed, HeadReached, PeerClosed, Received
from hpclaunch.core.protocol.messages import Message, Report
from hpclaunch.core.protocol.model import HEAD

if TYPE_CHECKING:
    from cluster_sim import Simulation

RECONNECT = (0.1, 0.4)  # seconds until a closed connection is there again
LOOKS = (0.01, 0.1, 0.4, 1.0)  # seconds after which a host is asked once more


class Network:
    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.up: set[tuple[int, int]] = set()  # connections: who reports, to whom
        self.wanted: set[tuple[int, int]] = set()
        self.cut: dict[tuple[int, int], int] = {}  # one way, and how many faults have cut it
        self.disturbed: set[int] = set()  # those that may take each other for lost
        self._ends: dict[tuple[int, int], int] = {}  # (who reports, to which index): to whom
        self._dialled: dict[
            tuple[int, int], int
        ] = {}  # by connection: the index that was asked for
        self._names: dict[tuple[int, int], int] = {}  # (to whom, of which index): who reports

    def dial(self, number: int, agents: Collection[int], addresses: Collection[str] = ()) -> None:
        for end in [e for e in self._ends if e[0] == number and e[1] not in agents]:
            del self._ends[end]
        for agent, address in zip(agents, addresses or [""] * len(agents), strict=True):
            there = (number, agent) in self._ends  # then it keeps the address that it has
            if not there and (found := self._find(agent, address)) is not None:
                self._ends[number, agent] = found
                self._dialled[number, found] = agent
        new = {(number, to) for (client, _), to in self._ends.items() if client == number}
        for pair in [p for p in self.wanted if p[0] == number and p not in new]:
            self.wanted.discard(pair)
            self.up.discard(pair)
        for pair in sorted(new - self.wanted):
            self.wanted.add(pair)
            self._soon(pair, 0.0, 0.02)

    def _find(self, agent: int, address: str) -> int | None:
        """Return the number of the agent at an address; None if there is none."""
        job = self.sim.plan.job
        if job.elects or agent == HEAD:
            return agent  # by its name
        return next((p.index for p in job.places if address == f"addr-{p.host}"), None)

    def _soon(self, pair: tuple[int, int], least: float, most: float) -> None:
        wait = self.sim.rng.uniform(least, most)
        self.sim.after(wait, lambda: self.connect(*pair))

    def connect(self, client: int, server: int) -> None:
        pair, agents = (client, server), self.sim.agents
        if pair in self.up or pair not in self.wanted or self.is_cut(*pair):
            return
        index = self._dialled[pair]
        if agents[client].living and agents[server].living and agents[server].place == index:
            self.up.add(pair)
            self._names[server, agents[client].place] = client
            theirs, own = (f"addr-{agents[number].host}" for number in (server, client))
            agents[client].deliver(HeadReached(index, theirs, "" if own == theirs else own))

    def is_cut(self, one: int, other: int) -> bool:
        return (one, other) in self.cut or (other, one) in self.cut

    def send(self, sender: int, index: int, message: Message) -> None:
        plan, rng = self.sim.plan, self.sim.rng
        reports = isinstance(message, Report)
        to = (self._ends if reports else self._names).get((sender, index), -1)
        pair = (sender, to) if reports else (to, sender)
        if pair not in self.up or rng.random() < plan.drop or (sender, to) in self.cut:
            return
        heard = Received(
            self.sim.agents[sender].place if reports else self._dialled[pair],
            message,
            f"addr-{plan.job.places[sender].host}",
        )
        for _ in range(2 if rng.random() < plan.duplicate else 1):
            self.sim.after(self._delay(), lambda: self._arrive(sender, to, heard))

    def _delay(self) -> float:
        rng = self.sim.rng
        if rng.random() < self.sim.plan.slow:
            return rng.uniform(0.0, 1.0)
        return rng.uniform(0.5, 1.5) * self.sim.plan.delay

    def _arrive(self, sender: int, to: int, heard: Received) -> None:
        if (sender, to) not in self.cut:
            self.sim.agents[to].deliver(heard)

    def process_started(self, number: int) -> None:
        for pair in sorted(self.wanted):
            if number in pair:
                self._soon(pair, 0.0, 0.2)

    def process_ended(self, number: int, *, seen: bool) -> None:
        """Close the connections of an agent. Its messages are still on their way; its peers learn
        of the end later, if they can see it at all.
        """
        for pair in sorted(self.up):
            if number in pair:
                self.up.discard(pair)
                if seen:
                    self._report_close(pair, ended=number)

    def blip(self, pair: tuple[int, int]) -> None:
        if pair not in self.up:
            return
        self.up.discard(pair)
        self._report_close(pair)
        self._soon(pair, *RECONNECT)

    def _report_close(self, pair: tuple[int, int], ended: int = -1) -> None:
        for to, event in self._closed(pair):
            if to != ended:
                wait = self.sim.rng.uniform(0.0, 0.05)
                self.sim.after(wait, lambda to=to, event=event: self._send_close(pair, to, event))

    def _closed(self, pair: tuple[int, int]) -> list[tuple[int, HeadClosed | PeerClosed]]:
        """Return the events of a closed connection for both ends."""
        client, server = pair
        other = self.sim.agents[client].place
        return [(client, HeadClosed(self._dialled[pair])), (server, PeerClosed(other))]

    def _send_close(self, pair: tuple[int, int], to: int, event: HeadClosed | PeerClosed) -> None:
        if not self.is_cut(*pair):
            self.sim.agents[to].deliver(event)

    def probe(self, asker: int, about: Probe) -> None:
        """Ask whether an agent is dead. Only its fork server answers, once it is."""
        known = self._ends.get((asker, about.agent))
        where = self._find(about.agent, about.address) if known is None else known
        if where is None:
            return

        def look() -> None:
            agent = self.sim.agents[where]
            is_it = about.incarnation == agent.name or agent.place == about.agent
            if agent.is_confirmed_dead and is_it and not self.is_cut(asker, where):
                self.sim.agents[asker].deliver(AgentGone(about.agent, about.number))

        for wait in LOOKS:
            self.sim.after(wait, look)

    # Faults

    def refuse(self, one: Collection[int], other: Collection[int], *, both_ways: bool) -> None:
        """Close connections with an error for whoever sends to the other side: both groups, or
        the first one only."""
        for client, server in sorted(self.up):
            across = (client in one and server in other) or (client in other and server in one)
            for to, event in self._closed((client, server)):
                if across and (both_ways or to in one):
                    wait = self.sim.rng.uniform(0.0, 0.05)
                    agent = self.sim.agents[to]
                    self.sim.after(wait, lambda agent=agent, event=event: agent.deliver(event))

    def separate(self, one: Collection[int], other: Collection[int], lasts: float) -> None:
        """Drop all messages between the two, both ways."""
        pairs = [(a, b) for a in one for b in other] + [(b, a) for a in one for b in other]
        self.disturbed.update(one, other if len(one) > 1 else ())
        self._cut([(a, b) for a, b in pairs if a != b], lasts)

    def silence(self, index: int, lasts: float, *, mute: bool) -> None:
        """Drop the messages to or from one agent: one way only."""
        self.disturbed.add(index)
        others = [i for i in range(len(self.sim.agents)) if i != index]
        self._cut([(index, i) if mute else (i, index) for i in others], lasts, one_way=True)

    def _cut(self, pairs: list[tuple[int, int]], lasts: float, *, one_way: bool = False) -> None:
        for pair in pairs:
            self.cut[pair] = self.cut.get(pair, 0) + 1
            if not one_way:
                self.up.discard(pair)
        self.sim.after(lasts, lambda: self._heal(pairs))

    def _heal(self, pairs: list[tuple[int, int]]) -> None:
        for pair in pairs:
            self.cut[pair] -= 1
            if not self.cut[pair]:
                del self.cut[pair]
                self._soon(pair, *RECONNECT)
                self._soon(pair[::-1], *RECONNECT)
