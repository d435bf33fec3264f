"""The agents' network: one connection between each agent and the head.

It keeps no promise that the protocol does not ask for: a message may be late, twice, after a
younger one, or lost. A connection that is closed is reported to both ends, a cut to neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpclaunch.core.events import HeadReached, PeerClosed, Received
from hpclaunch.core.messages import Message

if TYPE_CHECKING:
    from cluster_sim import Simulation

HEAD = 0
RECONNECT = (0.1, 0.4)  # seconds until a closed connection is there again


class Network:
    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.up = [False] * len(sim.plan.starts)  # the connection of each agent to the head
        self.cut: set[int] = set()
        self.silent: set[tuple[int, bool]] = set()  # (agent, whether it is mute, or else deaf)
        self.disturbed: set[int] = set()  # those that may take each other for lost with the head

    def send(self, sender: int, to: int, message: Message) -> None:
        plan, rng = self.sim.plan, self.sim.rng
        if not self.up[max(sender, to)] or rng.random() < plan.drop:
            return
        if (sender, True) in self.silent or (to, False) in self.silent:
            return
        for _ in range(2 if rng.random() < plan.duplicate else 1):
            self.sim.after(self._delay(), lambda: self._arrive(sender, to, message))

    def _delay(self) -> float:
        rng = self.sim.rng
        if rng.random() < self.sim.plan.slow:
            return rng.uniform(0.0, 1.0)
        return rng.uniform(0.5, 1.5) * self.sim.plan.delay

    def _arrive(self, sender: int, to: int, message: Message) -> None:
        if max(sender, to) not in self.cut:
            host = self.sim.plan.job.places[sender].host
            self.sim.agents[to].deliver(Received(sender, message, f"addr-{host}"))

    def process_started(self, index: int) -> None:
        for member in self._connections_of(index):
            self.sim.after(self.sim.rng.uniform(0.0, 0.2), lambda m=member: self.connect(m))

    def connect(self, member: int) -> None:
        ends = (self.sim.agents[HEAD], self.sim.agents[member])
        if self.up[member] or member in self.cut or not all(end.living for end in ends):
            return
        self.up[member] = True
        self.sim.agents[member].deliver(HeadReached())

    def process_ended(self, index: int) -> None:
        """What it sent before is still on its way; its peers learn of the end in their time."""
        for member in self._connections_of(index):
            if self.up[member]:
                self.up[member] = False
                self._report_close(member if index == HEAD else HEAD, index)

    def blip(self, member: int) -> None:
        if not self.up[member]:
            return
        self.up[member] = False
        self._report_close(HEAD, member)
        self._report_close(member, HEAD)
        self.sim.after(self.sim.rng.uniform(*RECONNECT), lambda: self.connect(member))

    def cut_off(self, index: int, lasts: float) -> None:
        self.disturb(index)
        for member in self._connections_of(index):
            self.cut.add(member)
            self.up[member] = False
            self.sim.after(lasts, lambda m=member: self._heal(m))

    def _heal(self, member: int) -> None:
        self.cut.discard(member)
        self.sim.after(self.sim.rng.uniform(*RECONNECT), lambda: self.connect(member))

    def silence(self, index: int, lasts: float, *, mute: bool) -> None:
        self.disturb(index)
        self.silent.add((index, mute))
        self.sim.after(lasts, lambda: self.silent.discard((index, mute)))

    def disturb(self, index: int) -> None:
        self.disturbed.update([index, *(self._connections_of(index) if index == HEAD else ())])

    def _report_close(self, to: int, about: int) -> None:
        def tell() -> None:
            if to not in self.cut and about not in self.cut:
                self.sim.agents[to].deliver(PeerClosed(about))

        self.sim.after(self.sim.rng.uniform(0.0, 0.05), tell)

    def _connections_of(self, index: int) -> list[int]:
        members = range(1, len(self.up))
        return list(members) if index == HEAD else [index]
