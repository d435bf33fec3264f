"""The agents' network: connections of agents to those that they report to.

It keeps no promise that the protocol does not ask for: a message may be late, twice, after a
younger one, or lost. A connection that is closed is reported to both ends, a cut to neither.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from hpclaunch.core.protocol.events import AgentGone, HeadClosed, HeadReached, PeerClosed, Received
from hpclaunch.core.protocol.messages import Message, Report

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

    def dial(self, index: int, agents: Collection[int]) -> None:
        new = {(index, agent) for agent in agents}
        for pair in [p for p in self.wanted if p[0] == index and p not in new]:
            self.wanted.discard(pair)
            self.up.discard(pair)
        for pair in sorted(new - self.wanted):
            self.wanted.add(pair)
            self._soon(pair, 0.0, 0.02)

    def _soon(self, pair: tuple[int, int], least: float, most: float) -> None:
        wait = self.sim.rng.uniform(least, most)
        self.sim.after(wait, lambda: self.connect(*pair))

    def connect(self, client: int, server: int) -> None:
        pair, agents = (client, server), self.sim.agents
        if pair in self.up or pair not in self.wanted or self.is_cut(*pair):
            return
        if agents[client].living and agents[server].living:
            self.up.add(pair)
            agents[client].deliver(HeadReached(server))

    def is_cut(self, one: int, other: int) -> bool:
        return (one, other) in self.cut or (other, one) in self.cut

    def send(self, sender: int, to: int, message: Message) -> None:
        plan, rng = self.sim.plan, self.sim.rng
        pair = (sender, to) if isinstance(message, Report) else (to, sender)
        if pair not in self.up or rng.random() < plan.drop or (sender, to) in self.cut:
            return
        for _ in range(2 if rng.random() < plan.duplicate else 1):
            self.sim.after(self._delay(), lambda: self._arrive(sender, to, message))

    def _delay(self) -> float:
        rng = self.sim.rng
        if rng.random() < self.sim.plan.slow:
            return rng.uniform(0.0, 1.0)
        return rng.uniform(0.5, 1.5) * self.sim.plan.delay

    def _arrive(self, sender: int, to: int, message: Message) -> None:
        if (sender, to) not in self.cut:
            host = self.sim.plan.job.places[sender].host
            self.sim.agents[to].deliver(Received(sender, message, f"addr-{host}"))

    def process_started(self, index: int) -> None:
        for pair in sorted(self.wanted):
            if index in pair:
                self._soon(pair, 0.0, 0.2)

    def process_ended(self, index: int, *, seen: bool) -> None:
        """What it sent before is still on its way; its peers learn of the end in their time, if
        they can see it at all.
        """
        for pair in sorted(self.up):
            if index in pair:
                self.up.discard(pair)
                if seen:
                    self._report_close(pair, ended=index)

    def blip(self, pair: tuple[int, int]) -> None:
        if pair not in self.up:
            return
        self.up.discard(pair)
        self._report_close(pair)
        self._soon(pair, *RECONNECT)

    def _report_close(self, pair: tuple[int, int], ended: int = -1) -> None:
        client, server = pair
        for to, event in ((client, HeadClosed(server)), (server, PeerClosed(client))):
            if to != ended:
                wait = self.sim.rng.uniform(0.0, 0.05)
                self.sim.after(wait, lambda to=to, event=event: self._tell_close(pair, to, event))

    def _tell_close(self, pair: tuple[int, int], to: int, event: HeadClosed | PeerClosed) -> None:
        if not self.is_cut(*pair):
            self.sim.agents[to].deliver(event)

    def probe(self, asker: int, about: int) -> None:
        """Its fork server says so, once it is dead. That others refuse for it says nothing."""

        def look() -> None:
            if self.sim.agents[about].is_mourned and not self.is_cut(asker, about):
                self.sim.agents[asker].deliver(AgentGone(about))

        for wait in LOOKS:
            self.sim.after(wait, look)

    # Faults

    def refuse(self, one: Collection[int], other: Collection[int], *, both_ways: bool) -> None:
        """Whoever sends something to the other side is told that the connection is closed: both
        groups, or the first one only."""
        for client, server in sorted(self.up):
            across = (client in one and server in other) or (client in other and server in one)
            for to, event in ((client, HeadClosed(server)), (server, PeerClosed(client))):
                if across and (both_ways or to in one):
                    wait = self.sim.rng.uniform(0.0, 0.05)
                    agent = self.sim.agents[to]
                    self.sim.after(wait, lambda agent=agent, event=event: agent.deliver(event))

    def separate(self, one: Collection[int], other: Collection[int], lasts: float) -> None:
        """No message between the two, either way."""
        pairs = [(a, b) for a in one for b in other] + [(b, a) for a in one for b in other]
        self.disturbed.update(one, other if len(one) > 1 else ())
        self._cut([(a, b) for a, b in pairs if a != b], lasts)

    def silence(self, index: int, lasts: float, *, mute: bool) -> None:
        """One way only."""
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
