"""The agent's end of its fork server (`worker/fork_server.py`, where the protocol is)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ..shared.helper import GONE_LIMIT, Helper, numbers

SITE = str(Path(__file__).parent.parent.parent / "worker" / "site")  # to the front of PYTHONPATH


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker to start; `env` is over the shared one, `out` and `err` are files."""

    rank: int
    argv: Sequence[str]
    env: dict[str, str]
    out: str
    err: str
    cpus: Sequence[int] = ()  # those it is bound to; none: those of its agent


class ForkServerClient(Helper):
    has_children = True

    def __init__(self, handled: Iterable[int] = ()) -> None:
        """`handled` are signals beyond the usual ones on which the agent acts."""
        self.handled = tuple(handled)
        # Workers have the standard input of whoever has started us.
        super().__init__("hpclaunch.worker.fork_server", numbers(self.handled), stdin=None)

    def successor(self) -> ForkServerClient:
        return ForkServerClient(self.handled)

    def prepare(
        self,
        argv: Sequence[str],
        env: dict[str, str],
        modules: Sequence[str],
        *,
        own: Iterable[str] = (),
        now: bool,
    ) -> None:
        """How to start the template; `now`, or when a store is asked for its first connection.

        `own` are variables of which each worker has a value of its own: what depends on one of
        them when it is imported cannot be imported for all.
        """
        self.ask(op="prepare", argv=argv, env=env, modules=modules, own=sorted(own), now=now)

    def listen(self, *, loopback: bool) -> None:
        self.ask(op="listen", loopback=loopback)

    def start(
        self,
        workers: Sequence[Worker],
        env: dict[str, str],
        *,
        store: str,
        warm: bool,
        learn: bool = False,
        terminals: Mapping[int, Sequence[str]] | None = None,
        size: tuple[int, int] = (0, 0),
    ) -> None:
        """`store` is the file for the errors of the round's store, "" if another node has it.

        With `learn` the template imports what the first worker has, for the next round. In
        `terminals` a rank has "out", "err" or both: the worker writes to a terminal of that `size`
        (rows, columns), and what it writes there is copied to its file.
        """
        self.ask(
            op="start",
            workers=[asdict(w) for w in workers],
            env=env,
            store=store,
            warm=warm,
            learn=learn,
            terminals=terminals or {},
            size=size,
        )

    def resize(self, size: tuple[int, int]) -> None:
        """The terminals of the workers, (rows, columns)."""
        self.ask(op="resize", size=size)

    def keep(self, until: float) -> None:
        """Of the workers, until when they may run."""
        self.ask(op="keep", until=until)

    def signal(self, signum: int) -> None:
        self.ask(op="signal", signum=signum)

    def stop(self) -> None:
        self.ask(op="stop")

    def kill_idle(self) -> None:
        self.ask(op="kill-idle")

    def kill(self) -> None:
        self.ask(op="kill")

    def close(self) -> None:
        """The end: the fork server kills whatever is left, and goes."""
        self.end(2 * GONE_LIMIT)
