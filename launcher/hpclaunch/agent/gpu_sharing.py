"""MPS for GPUs that workers share: started before a round, and checked while it runs."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from ..core.placement import worker_environment
from ..core.protocol import effects, events
from ..core.protocol.model import HEAD, Assignment, Origin, Trouble
from ..core.protocol.node_facts import (
    ForeignMpsAwaited,
    ForeignMpsCrowded,
    MpsBypassed,
    MpsStarted,
    NodeFact,
)
from .adapter import Adapter, Fd, Performs
from .context import Context

if TYPE_CHECKING:  # what only a node with GPUs has to load
    from ..core.placement.mps_shares import Plan
    from ..system.gpus.mps import MpsKeeperClient
    from ..worker import mps_messages

OCCUPIED = (
    "Ask Slurm for GPUs of your own (--exclusive), or let CUDA_MPS_PIPE_DIRECTORY name a directory "
    "without a daemon, for one of your own"
)


class GpuSharing(Adapter):
    """The MPS daemons of one agent, run by their keeper. `close` ends them, after the workers."""

    def __init__(self, context: Context) -> None:
        self._config, self._environ = context.config, context.environ
        self._record, self._note = context.record, context.note
        self._is_replaced = context.logs.is_replaced
        self._host = context.host
        self._is_head = self._config.place.index == HEAD
        self._keeper: MpsKeeperClient | None = None
        self._part: Assignment | None = None
        self._plan: Plan | None = None
        self._waits = False  # for the keeper's answer
        self._tries = 0
        self._pids: dict[int, int] = {}  # of the round's workers, by rank
        self._recorded: set[NodeFact] = set()  # facts that every round finds again
        self.directories: dict[str, str] = {}  # of MPS's pipes, by the GPUs that they serve

    def performs(self) -> Performs:
        return {effects.PrepareGpus: self._prepare}

    def _prepare(self, effect: effects.PrepareGpus) -> list[events.Event]:
        part = effect.assignment
        self._part, self._pids, self.directories = part, {}, {}
        self._waits, self._tries = False, 0
        if self._config.selector != worker_environment.CUDA:
            return [events.GpusReady(part.round)]
        from ..core.placement import mps_shares
        from ..system.gpus.mps import MpsKeeperClient, find, stale

        settings = mps_shares.Settings(*self._config.mps)
        wanted = mps_shares.wanted(settings, part.shares)
        found = find(self._environ, self._config.cuda) if wanted else mps_shares.MpsSupport()
        self._plan = mps_shares.plan(
            settings, part.shares, self._config.gpus, found, host=self._host
        )
        if self._plan.error:
            return self._cannot(self._plan.error)
        self._record_once(*self._plan.notes)
        if not (self._plan.groups or self._plan.foreign or stale(self._environ)):
            return [events.GpusReady(part.round)]
        if self._keeper is None:
            name, control = self._config.allocation.name, found.control or mps_shares.CONTROL
            self._keeper = MpsKeeperClient(name, control, self._config.handled)
        self._ask()
        return []

    def started(self, rank: int, pid: int) -> None:
        """Note a worker. Once all have started, the keeper checks that they are clients of MPS."""
        self._pids[rank] = pid
        part, keeper = self._part, self._keeper
        complete = part is not None and len(self._pids) == part.nproc
        if self.directories and complete and keeper is not None:
            keeper.watch(self._pids)

    def fds(self) -> Iterable[Fd]:
        return () if self._keeper is None else (self._keeper.fileno(),)

    def ready(self, fds: Collection[Fd], now: float) -> list[events.Event]:
        keeper = self._keeper
        if keeper is None or keeper.fileno() not in fds:
            return []
        answers = [event for reply in keeper.hear() for event in self._on_reply(reply)]
        if keeper.lost:
            answers += self._on_loss(keeper)
        return answers

    def close(self) -> None:
        if self._keeper is not None:
            self._keeper.close()

    def _ask(self) -> None:
        assert self._keeper is not None, "a keeper was started"
        assert self._part is not None, "a round is being prepared"
        assert self._plan is not None, "a plan was made"
        self._waits = True
        self._tries += 1
        self._keeper.prepare(self._part.round, self._plan.groups, self._plan.foreign)

    def _on_reply(self, reply: mps_messages.Event) -> list[events.Event]:
        from ..worker import mps_messages  # only where there is MPS

        self._note("mps", reply.encoded())
        number = self._part.round if self._waits and self._part is not None else -1
        match reply:
            case mps_messages.Ready(n, directories, present) if n == number:
                self._waits = False
                self.directories = directories
                if crowded := self._crowded(present):
                    self._record_once(crowded)
                if directories and directories.keys() != {""} and self._is_head:
                    self._record_once(self._started(directories))
                return [events.GpusReady(number)]
            case mps_messages.Failed(n, why) if n == number:
                self._waits = False
                return self._without(why)
            case mps_messages.Waiting(n, why) if n == number:
                self._record(ForeignMpsAwaited(self._host, why))
            case mps_messages.Occupied(n, why) if n == number:
                self._waits = False
                return self._cannot(f"{why}. {OCCUPIED}")
            case mps_messages.Outside(ranks):
                self._record(MpsBypassed(self._host, tuple(ranks)))
        return []

    def _on_loss(self, keeper: MpsKeeperClient) -> list[events.Event]:
        """Replace the keeper. Its daemons have ended with it, so their clients, if any, fail."""
        keeper.close()
        self._keeper = None
        if self._is_replaced(keeper):
            self._keeper = keeper.successor()
        if not self._waits:
            return []
        if self._tries > 1 or self._keeper is None:
            self._waits = False
            return self._without("the process that keeps it was killed again")
        self._ask()
        return []

    def _without(self, why: str) -> list[events.Event]:
        from ..core.placement import mps_shares

        assert self._part is not None, "the keeper was asked for a part"
        shares, gpus = self._part.shares, self._config.gpus
        settings = mps_shares.Settings(*self._config.mps)
        left = mps_shares.without(settings, shares, gpus, why, host=self._host)
        if left.error:
            return self._cannot(left.error)
        self._record_once(*left.notes)
        return [events.GpusReady(self._part.round)]

    def _cannot(self, why: str) -> list[events.Event]:
        reason = f"on {self._host}: {why}"
        return [events.TroubleFound(Trouble(Origin.USAGE, reason)), events.WorkersGone()]

    def _crowded(self, present: int) -> ForeignMpsCrowded | None:
        from ..core.placement import mps_shares

        assert self._plan is not None, "the keeper was asked for a plan"
        return mps_shares.crowded(self._plan, present, self._host)

    def _started(self, keys: Iterable[str]) -> MpsStarted:
        names = {gpu.uuid: gpu.name for gpu in self._config.gpus}
        gpus = [tuple(names[uuid] for uuid in key.split(",")) for key in keys]
        return MpsStarted(self._host, tuple(sorted(gpus)))

    def _record_once(self, *found: NodeFact) -> None:
        """Record each of these facts once, although every round finds them."""
        for fact in found:
            if fact not in self._recorded:
                self._recorded.add(fact)
                self._record(fact)
