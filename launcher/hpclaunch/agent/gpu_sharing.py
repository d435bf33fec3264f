"""MPS for GPUs that workers share: started before a round, and checked while it runs."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import partial
from typing import TYPE_CHECKING

from ..core.placement import worker_environment
from ..core.protocol import effects, events
from ..core.protocol.model import HEAD, Assignment, Origin, Trouble
from ..core.protocol.node_facts import (
    ForeignMpsAwaited,
    MpsBypassed,
    MpsStarted,
    NodeFact,
)
from ..core.protocol.values import replace
from ..system.shared.errands import Answer, AskMps, MpsAnswered
from .adapter import Adapter, Fd, Performs
from .context import Context

if TYPE_CHECKING:  # what only a node with GPUs has to load
    from ..core.placement.mps_shares import MpsSupport, Plan
    from ..system.gpus.mps import MpsKeeperClient
    from ..worker import mps_messages

OCCUPIED = (
    "Ask Slurm for GPUs of your own (--exclusive), or set CUDA_MPS_PIPE_DIRECTORY to a directory "
    "without a daemon: hpclaunch then starts one"
)


class GpuSharing(Adapter):
    """The MPS daemons of one agent, run by their keeper. `close` ends them, after the workers."""

    def __init__(self, context: Context) -> None:
        self._config, self._environ = context.config, context.environ
        self._record, self._note = context.record, context.note
        self._errands = context.errands
        self._is_replaced = context.logs.is_replaced
        self._host = context.host
        self._is_head = self._config.place.index == HEAD
        self._keeper: MpsKeeperClient | None = None
        self._part: Assignment | None = None  # of the round that waits for its GPUs
        self._pending: tuple[Assignment, Plan] | None = None  # what the keeper prepares now
        self._tries = 0
        self._nproc = 0  # the round's workers
        self._pids: dict[int, int] = {}  # of the round's workers, by rank
        self._recorded: set[NodeFact] = set()  # facts that every round finds again
        self.directories: dict[str, str] = {}  # of MPS's pipes, by the GPUs that they serve

    def performs(self) -> Performs:
        return {effects.PrepareGpus: self._prepare}

    def _prepare(self, effect: effects.PrepareGpus) -> list[events.Event]:
        part = effect.assignment
        self._nproc, self._pids, self.directories = part.nproc, {}, {}
        self._part, self._pending, self._tries = part, None, 0
        if self._config.selector != worker_environment.CUDA:
            return self._ready(part)
        from ..core.placement import mps_shares
        from ..system.gpus.mps import installed

        settings = mps_shares.Settings(*self._config.mps)
        if not mps_shares.wanted(settings, part.shares):
            return self._begin(part, mps_shares.MpsSupport())
        here, pipes = installed(self._environ, self._config.cuda)
        if not pipes:
            return self._begin(part, here)
        question = AskMps(here.control, pipes)
        self._errands.run(question, partial(self._answered, part, here, pipes))
        return []

    def cancel(self) -> None:
        """Forget the round that waits for its GPUs. Late answers then change nothing."""
        self._part = self._pending = None

    def _answered(
        self, part: Assignment, here: MpsSupport, pipes: str, answer: Answer | None
    ) -> list[events.Event]:
        """Continue with the answer of a daemon that is not ours, or without one."""
        if part is not self._part:  # the round for which it was asked is over
            return []
        if isinstance(answer, MpsAnswered):
            here = replace(here, foreign=answer.foreign, refused=answer.refused)
        else:
            why = f"the MPS daemon at {pipes} is not used: it could not be asked"
            here = replace(here, refused=why)
        return self._begin(part, here)

    def _begin(self, part: Assignment, found: MpsSupport) -> list[events.Event]:
        from ..core.placement import mps_shares
        from ..system.gpus.mps import MpsKeeperClient, stale

        settings = mps_shares.Settings(*self._config.mps)
        plan = mps_shares.plan(settings, part.shares, self._config.gpus, found, host=self._host)
        if plan.error:
            return self._cannot(plan.error)
        self._record_once(*plan.notes)
        if not (plan.groups or plan.foreign or stale(self._environ)):
            return self._ready(part)
        if self._keeper is None:
            name, control = self._config.allocation.name, found.control or mps_shares.CONTROL
            try:
                self._keeper = MpsKeeperClient(name, control, self._config.handled)
            except OSError as e:
                return self._without(part, _cannot_start(e))
        self._ask(self._keeper, part, plan)
        return []

    def started(self, rank: int, pid: int) -> None:
        """Note a worker. Once all have started, the keeper checks that they are clients of MPS."""
        self._pids[rank] = pid
        if self.directories and len(self._pids) == self._nproc and self._keeper is not None:
            self._keeper.watch(self._pids)

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

    def _ask(self, keeper: MpsKeeperClient, part: Assignment, plan: Plan) -> None:
        self._pending = part, plan
        self._tries += 1
        keeper.prepare(part.round, plan.groups, plan.foreign)

    def _on_reply(self, reply: mps_messages.Event) -> list[events.Event]:
        from ..core.placement import mps_shares
        from ..worker import mps_messages

        self._note("mps", reply.encoded())
        if isinstance(reply, mps_messages.Outside):
            self._record(MpsBypassed(self._host, tuple(reply.ranks)))
        if self._pending is None:
            return []
        part, plan = self._pending
        match reply:
            case mps_messages.Ready(part.round, directories, present):
                self.directories = directories
                if crowded := mps_shares.crowded(plan, present, self._host):
                    self._record_once(crowded)
                if directories and directories.keys() != {""} and self._is_head:
                    self._record_once(self._started(directories))
                return self._ready(part)
            case mps_messages.Failed(part.round, why):
                return self._without(part, why)
            case mps_messages.Waiting(part.round, why):
                self._record(ForeignMpsAwaited(self._host, why))
            case mps_messages.Occupied(part.round, why):
                return self._cannot(f"{why}. {OCCUPIED}")
        return []

    def _on_loss(self, keeper: MpsKeeperClient) -> list[events.Event]:
        """Replace the keeper. Its daemons have ended with it, so their clients, if any, fail."""
        keeper.abandon()
        self._keeper, why = None, "the process that keeps it has ended repeatedly"
        if self._is_replaced(keeper):
            try:
                self._keeper = keeper.successor()
            except OSError as e:
                why = _cannot_start(e)
        if self._pending is None:
            return []
        part, plan = self._pending
        if self._tries > 1 or self._keeper is None:
            return self._without(part, why)
        self._ask(self._keeper, part, plan)
        return []

    def _without(self, part: Assignment, why: str) -> list[events.Event]:
        """Continue without MPS, if that is possible."""
        from ..core.placement import mps_shares

        settings, gpus = mps_shares.Settings(*self._config.mps), self._config.gpus
        left = mps_shares.without(settings, part.shares, gpus, why, host=self._host)
        if left.error:
            return self._cannot(left.error)
        self._record_once(*left.notes)
        return self._ready(part)

    def _ready(self, part: Assignment) -> list[events.Event]:
        self.cancel()
        return [events.GpusReady(part.round)]

    def _cannot(self, why: str) -> list[events.Event]:
        self.cancel()
        reason = f"on {self._host}: {why}"
        return [events.TroubleFound(Trouble(Origin.USAGE, reason)), events.WorkersGone()]

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


def _cannot_start(error: OSError) -> str:
    return f"the process that keeps it cannot be started: {error.strerror}"
