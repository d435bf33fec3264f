"""The agent's client of its fork server (`worker/fork_server.py`)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ...core.protocol.process_kinds import ProcessKind
from ...worker.fork_server_messages import EVENTS, Event, Part
from ...worker.messages import decode
from ..shared.helper import GONE_LIMIT, Helper, numbers

SITE = str(Path(__file__).parent.parent.parent / "worker" / "site")  # leads PYTHONPATH


class ForkServerClient(Helper):
    """A client that sends commands and receives events."""

    has_children = True
    kind = ProcessKind.FORK_SERVER

    def __init__(self, handled: Iterable[int] = ()) -> None:
        """`handled`: signals beyond the usual ones on which the agent acts."""
        self.handled = tuple(handled)
        # Workers inherit our standard input.
        super().__init__("hpclaunch.worker.fork_server", numbers(self.handled), stdin=None)

    def successor(self) -> ForkServerClient:
        return ForkServerClient(self.handled)

    def hear(self) -> list[Event]:
        """Return the events that are there; call it when the descriptor is readable."""
        return [decode(EVENTS, raw) for raw in self.receive()]

    def close(self, *, in_order: bool = True) -> None:
        """End the fork server, which kills everything that is left. Unless all is `in_order`, it
        first posts the death notice of this agent, whose port must be free by now.
        """
        if in_order:
            self.send(Part())
        self.end(2 * GONE_LIMIT)
