"""One agent's whole core: its own side, and the head as well where it is the head.

Both sides talk in the same messages whether or not they share a process; the ones that stay in
this process are delivered here, at once and in order.
"""

from __future__ import annotations

from collections import deque

from .effects import Effect, Exit, Send
from .events import CheckpointChosen, Diagnosed, Event, PeerClosed, Received, Started, Tick
from .member import Member
from .messages import Report
from .model import HEAD, Job, Phase
from .rounds import Head, Stage


class Control:
    """`handle(event, now) -> effects`, the last of which is `Exit`.

    The caller delivers `Started` first and a `Tick` whenever `next_deadline()` has passed, and
    carries out the effects in order.
    """

    def __init__(
        self,
        job: Job,
        index: int,
        nproc: int,
        address: str,
        incarnation: str,
        gpus: tuple[str, ...] = (),
    ) -> None:
        self.index = index
        self.member = Member(job, index, nproc, address, incarnation, gpus)
        self.head = Head(job) if index == HEAD else None
        self.exited = False

    def next_deadline(self) -> float:
        mine = self.member.next_deadline()
        return mine if self.head is None else min(mine, self.head.next_deadline())

    def handle(self, event: Event, now: float) -> list[Effect]:
        if self.exited:
            return []
        queue: deque[Event] = deque([event])
        effects: list[Effect] = []
        while queue:
            for effect in self._route(queue.popleft(), now):
                if isinstance(effect, Send) and effect.to == self.index:
                    queue.append(Received(self.index, effect.message))
                else:
                    effects.append(effect)
        if self._over():
            self.exited = True
            assert self.member.verdict is not None, "an agent ends with a verdict"
            effects.append(Exit(self.member.verdict))
        return effects

    def _over(self) -> bool:
        over = self.member.phase is Phase.ENDED
        return over and (self.head is None or self.head.stage is Stage.ENDED)

    def _route(self, event: Event, now: float) -> list[Effect]:
        head: list[Effect] = []
        if self.head is not None:
            if isinstance(event, Started | Tick | PeerClosed):
                head = self.head.handle(event, now)
            elif isinstance(event, CheckpointChosen | Diagnosed) or _is_report(event):
                return self.head.handle(event, now)
        return head + self.member.handle(event, now)


def _is_report(event: Event) -> bool:
    return isinstance(event, Received) and isinstance(event.message, Report)
