"""An agent, put together: its adapters, the loop that serves them, and the order of its end."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from ..core.control import Control, ControlArguments
from ..core.protocol import events
from ..core.protocol.effects import Exit
from ..system.logs.log_client import LogServiceClient
from ..system.processes.fork_server_client import ForkServerClient
from ..system.processes.signals import Signals
from ..system.shared.steady_date import SteadyDate
from .adapter import Adapter
from .config import Config
from .end_watch import EndWatch
from .errands import Errands
from .fork_server import ForkServer
from .gpu_sharing import GpuSharing
from .health_watch import HealthWatch
from .history_keeping import HistoryKeeping
from .joining import join
from .last_words import LastWords
from .later_imports import LaterImports
from .ledger_keeping import LedgerKeeping
from .logs import Logs
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


class Agent:
    """Built from a Config; `run` returns the last effect of its core."""

    def __init__(
        self,
        config: Config,
        environ: Mapping[str, str],
        signals: Signals,
        server: ForkServerClient,
        service: LogServiceClient,
    ) -> None:
        self._config = config
        host = config.job.places[config.allocation.index].host
        # What is recorded is written by the log service, whose own end is recorded.
        self._logs = logs = Logs(config, service, lambda fact: self._recording.record(fact))
        is_replaced = logs.is_replaced
        date, incarnation = SteadyDate(), os.urandom(8).hex()
        self._recording = recording = Recording(config, logs, date, incarnation)
        record, note = recording.record, recording.journal.note
        errands = Errands(is_replaced)
        joined = join(config, environ, record, errands)
        self._network = network = joined.network
        made = ControlArguments(
            job=config.job,
            index=config.allocation.index,
            nproc=config.nproc,
            address=joined.address,
            incarnation=incarnation,
            gpus=tuple(gpu.uuid for gpu in config.gpus),
            port=network.port,
            networks=joined.networks,
            anew=config.anew,
            task=config.allocation.task,
            has_place=config.allocation.has_place,
        )
        self.control = control = Control(**made)
        recording.journal.began(made)
        output = Output(
            logs,
            config.streams,
            role=config.role,
            launch=config.allocation.name,
            label=config.allocation.label,
            host=host,
        )
        last_words = LastWords(logs)
        self._health = health = HealthWatch(config, logs, note, record)
        self._sharing = GpuSharing(config, environ, record, note, is_replaced)
        resuming = Resuming(config, health.look_at_checkpoints, record, is_replaced)
        self._fork_server = fork_server = ForkServer(
            config,
            environ,
            server,
            output,
            last_words,
            health,
            self._sharing,
            resuming,
            errands,
            note,
            record,
        )
        network.leave_notice(fork_server, incarnation)
        end_watch = EndWatch(config.job, environ, errands)
        ledger = LedgerKeeping(config, control, date, incarnation, logs, end_watch, record)
        viewing = Viewing(config, control, logs, ledger, health, resuming, date)
        notifying = Notifying(config, errands, record, ledger.goodput)
        history = HistoryKeeping(config, control, date, logs, fork_server, health, resuming)
        recording.observers += (ledger.note, viewing.note, notifying.note)
        adapters: tuple[Adapter, ...] = (
            Signalling(host, signals, record, fork_server.resize),
            logs,
            last_words,
            fork_server,
            health,
            self._sharing,
            resuming,
            errands,
            network,
            end_watch,
            LaterImports(),
            viewing,  # those who look see what has arrived before
            Metrics(config, viewing, record, is_replaced),
            notifying,
            PostMortem(config, control, logs, environ),
            ledger,  # if the report fails, the user still knows why the job did
            history,
            WaitOnTerminal(control, output, environ),
            recording,  # of what the others have recorded in the same turn
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
        """Return the exceptions from the rule that what was opened first is closed last."""
        # All that the others still record and say is written before the fork server, which may take
        # some time, is closed.
        shown = (self._recording, self._logs)
        # MPS daemons serve the workers, and NVML may hang.
        workers = (self._fork_server, self._sharing, self._health)
        if end is not None and not end.alone:
            return *shown, *workers, self._network  # others see this agent leave without workers
        # Others are to learn that this agent is dead: the fork server says so, at its port.
        return *shown, self._network, *workers


def run(
    config: Config,
    signals: Signals,
    server: ForkServerClient,
    logs: LogServiceClient,
    begun: Callable[[], None],
) -> int:
    """Be an agent; returns the exit code. Raises UsageError before `begun` is called, if at all.

    The caller creates `signals`, `server` and `logs` before this module is imported: so no signal
    is missed, and both processes start up during the import.
    """
    agent = Agent(config, os.environ, signals, server, logs)
    begun()
    end = agent.run()
    from . import sequel  # no start of an agent pays for it

    sequel.carry_out(end.verdict, config.job, os.environ, leads=agent.control.leads)
    return exit_code(end.verdict, config)
