"""The assembly of an agent: its adapters, the loop that serves them, and the order of closing."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from ..core.control import Control
from ..core.member.member import AgentStart
from ..core.protocol import events
from ..core.protocol.effects import Exit
from ..core.protocol.model import EXIT_LOST
from ..system.logs.log_client import LogServiceClient
from ..system.processes.fork_server_client import ForkServerClient
from ..system.processes.signals import Signals
from ..system.shared.helper import say_now
from ..system.shared.steady_date import SteadyDate
from . import sequel
from .adapter import Adapter
from .channels import Channels
from .config import Config
from .context import Context
from .end_watch import EndWatch
from .errands import Errands
from .fork_server import ForkServer
from .gpu_sharing import GpuSharing
from .health_watch import HealthWatch
from .history_keeping import HistoryKeeping
from .joining import join
from .ledger_keeping import LedgerKeeping
from .logs import Logs, LogsLostError
from .loop import Loop
from .metrics import Metrics
from .notifying import Notifying
from .output import Output
from .post_mortem import PostMortem, exit_code
from .recording import Recording
from .resuming import Resuming
from .signalling import Signalling
from .viewing import Viewing
from .waiting import WaitOnTerminal

if TYPE_CHECKING:
    from .staging import Staging


class Agent:
    """An agent with all of its adapters. `run` returns the last effect of its core."""

    def __init__(
        self,
        config: Config,
        environ: Mapping[str, str],
        signals: Signals,
        server: ForkServerClient,
        service: LogServiceClient,
    ) -> None:
        self._config = config
        # The log service writes the facts, and its own end is a fact.
        self._logs = logs = Logs(config, service, lambda fact: self._recording.record(fact))
        date, incarnation = SteadyDate(), os.urandom(8).hex()
        self._recording = recording = Recording(config, logs, date, incarnation)
        context = Context(
            config=config,
            environ=environ,
            logs=logs,
            errands=Errands(logs.is_replaced),
            date=date,
            incarnation=incarnation,
            record=recording.record,
            note=recording.journal.note,
        )
        self._network = network = join(context)
        own = AgentStart(
            job=config.job,
            index=config.allocation.index,
            nproc=config.nproc,
            address=network.address,
            incarnation=incarnation,
            gpus=tuple(gpu.uuid for gpu in config.gpus),
            port=network.port,
            networks=network.networks,
            claim=network.claim,
            anew=config.anew,
            task=config.allocation.task,
            has_place=config.allocation.has_place,
        )
        self.control = control = Control(own)
        recording.journal.began(own)
        output = Output(context)
        self._health = health = HealthWatch(context)
        self._sharing = sharing = GpuSharing(context)
        staging = _staging(context, control, network)
        resuming = Resuming(context, health.look_at_checkpoints, staging)
        self._fork_server = fork_server = ForkServer(
            context, server, output, health, sharing, resuming
        )
        network.leave_notice(fork_server.post_on_death, incarnation)
        end_watch = EndWatch(context)
        ledger = LedgerKeeping(context, control, end_watch)
        viewing = Viewing(context, control, ledger, health, resuming)
        notifying = Notifying(context, ledger.goodput)
        recording.observers += (ledger.note, viewing.note, notifying.note)
        adapters: tuple[Adapter, ...] = (
            Signalling(signals, fork_server.resize, staging),
            logs,
            fork_server,
            health,
            sharing,
            resuming,
            *([] if staging is None else [staging]),
            context.errands,
            network,
            end_watch,
            viewing,  # its answers include what has arrived in the same turn
            Metrics(context, viewing),
            notifying,
            PostMortem(context, control),
            ledger,  # after PostMortem: an error here must not hide why the job failed
            HistoryKeeping(context, control, fork_server, health, resuming),
            WaitOnTerminal(context, control, output),
            recording,  # writes what the others have recorded in the same turn
        )
        self._loop = Loop(control, recording.journal, adapters)

    def run(self) -> Exit:
        end = None
        try:
            for note in self._config.notes:
                self._recording.record(note)
            trouble = self._config.trouble
            troubles = [] if trouble is None else [events.TroubleFound(trouble)]
            end = self._loop.run([events.Started(), *troubles])
            self._loop.conclude(end)
            if not end.alone:
                self._logs.forget_first()
            return end
        finally:
            self._loop.close(self._closed_last(end))

    def _closed_last(self, end: Exit | None) -> Sequence[Adapter]:
        """Return the adapters to close last, in this order."""
        # Closing the fork server may take some time, so all output is written first.
        shown = (self._recording, self._logs)
        # Workers are clients of the MPS daemons, so they end first. NVML may hang.
        workers = (self._fork_server, self._sharing, self._health)
        if end is not None and not end.alone:
            # The other agents learn of the end once the workers have ended.
            return *shown, *workers, self._network
        # The fork server posts this agent's death notice at the port that the network has freed.
        return *shown, self._network, *workers


def _staging(context: Context, control: Control, network: Adapter) -> Staging | None:
    """Return the adapter of the stager, which has begun; None without --stage."""
    settings = context.config.checkpoints
    if settings is None or not settings.stage:
        return None
    from .spread_staging import SpreadStaging  # needed only with --stage
    from .staging import Staging

    if not isinstance(network, Channels):
        staging = Staging(context, settings)
    else:
        where = network.where
        key = network.keys(where.index).stager_key
        staging = SpreadStaging(context, settings, key, where.identity, control)
    staging.begin()
    return staging


def run(
    config: Config,
    signals: Signals,
    server: ForkServerClient,
    logs: LogServiceClient,
    begun: Callable[[], None],
) -> int:
    """Run an agent and return its exit code. After `begun` was called, no UsageError is raised.

    The caller creates `signals`, `server` and `logs` before it imports this module. So no signal is
    missed, and both processes start during the import.
    """
    agent = Agent(config, os.environ, signals, server, logs)
    begun()
    try:
        end = agent.run()
    except LogsLostError as e:
        say_now(f"error: {e}")
        return EXIT_LOST  # for the other agents, this one is lost
    sequel.carry_out(end.verdict, config.job, os.environ, leads=agent.control.leads)
    return exit_code(end.verdict, config)
