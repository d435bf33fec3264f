"""The agent's client of its fork server (`worker/fork_server.py`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...core.protocol.process_kinds import ProcessKind
from ...worker import fork_server_messages as messages
from ...worker.fork_server_messages import EVENTS, Event, Worker
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

    def prepare(
        self,
        argv: Sequence[str],
        env: dict[str, str],
        modules: Sequence[str],
        *,
        own: Iterable[str] = (),
        now: bool,
        steps: Sequence[Sequence[Any]] = (),
    ) -> None:
        """Start the template, `now` or on the first connection to a store.

        `own` are variables that differ between workers: the template imports no module that reads
        one of them on import. The first successor of the template performs the `steps`.
        """
        self.send(
            messages.Prepare(
                argv=[*argv],
                env=env,
                modules=[*modules],
                own=sorted(own),
                now=now,
                steps=[messages.Step(*step) for step in steps],
            )
        )

    def start(
        self,
        workers: Sequence[Worker],
        env: dict[str, str],
        *,
        store: str,
        peers: Sequence[str] = (),
        warm: bool,
        learn: bool = False,
        progress: bool = False,
        terminals: Mapping[int, Sequence[str]] | None = None,
        size: tuple[int, int] = (0, 0),
        pipes: bool = False,
    ) -> None:
        """Start the workers of a round.

        `store` is the file for the errors of the round's store, "" if another node has it; `peers`
        are the networks from which the nodes of the round connect to it. With `learn`, workers
        report what they have imported, for the templates of the next rounds; with `progress`, they
        report their progress.

        `terminals` names "out", "err" or both for a rank whose worker is to write to a terminal of
        this `size` (rows, columns); its output is copied to its file. With `pipes`, all other
        streams are pipes, which are copied in the same way.
        """
        self.send(
            messages.Start(
                workers=[*workers],
                env=env,
                store=store,
                peers=[*peers],
                warm=warm,
                learn=learn,
                progress=progress,
                terminals={rank: [*kinds] for rank, kinds in (terminals or {}).items()},
                size=size,
                pipes=pipes,
            )
        )

    def post_on_death(self, port: int, notice: str, secret: bytes, release: str) -> None:
        """Have the fork server post a death notice, should this process die before `close`.

        It then listens at this port, answers questions with the notice and a signature made with
        the secret, and stops once it receives `release`.
        """
        self.send(messages.PostOnDeath(port, notice, secret.hex(), release))

    def close(self, *, in_order: bool = True) -> None:
        """End the fork server, which kills everything that is left. Unless all is `in_order`, it
        first posts the death notice of this agent, whose port must be free by now.
        """
        if in_order:
            self.send(messages.Part())
        self.end(2 * GONE_LIMIT)
