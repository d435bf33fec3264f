"""The start of a round's workers: the log service makes their files, then the fork server starts
them.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ..core.protocol import events
from ..core.protocol.errors import UsageError
from ..core.protocol.model import Assignment, Origin, Trouble
from ..core.protocol.node_facts import OutputMoved
from ..core.protocol.values import replace
from ..system.logs import error_file, messages
from ..system.processes.fork_server_client import ForkServerClient
from ..worker.fork_server_messages import Start
from .context import Context
from .gpu_sharing import GpuSharing
from .output import Output
from .resuming import Resuming
from .workers import Crew, is_warm, notice_file, workers_of


class RoundStart:
    """Starts the workers of one round at a time."""

    def __init__(
        self, context: Context, output: Output, sharing: GpuSharing, resuming: Resuming
    ) -> None:
        self._config, self._environ, self._host = context.config, context.environ, context.host
        self._note, self._record = context.note, context.record
        self._output, self._sharing, self._resuming = output, sharing, resuming
        self._directory: Path | None = None
        self._starting: Crew | None = None  # the workers whose files are being made

    @property
    def directory(self) -> Path:
        """The directory of this agent's last round."""
        assert self._directory is not None, "no worker without a round"
        return self._directory

    @property
    def notice_file(self) -> Path:
        """A file that exists once the workers of the round have taken a notice."""
        return notice_file(self.directory, self._config)

    @property
    def store_errors(self) -> Path:
        """The file for errors of the processes that serve the rounds' stores."""
        return self.directory.parent / "store.err"

    def begin(self, part: Assignment, server: ForkServerClient) -> list[events.Event]:
        """Start the workers on this fork server. Return events if that is impossible."""
        assert self._config.logs is not None, "an agent without logs has trouble and starts nothing"
        try:
            self._make_files(part, server, self._config.logs.round(part.round))
        except UsageError as e:
            trouble = Trouble(Origin.USAGE, f"on {self._host}: {e}")
            return [events.TroubleFound(trouble), events.WorkersGone()]
        return []

    def cancel(self) -> bool:
        """Cancel a start. Return whether one was under way."""
        was_starting, self._starting = self._starting is not None, None
        return was_starting

    def _make_files(self, part: Assignment, server: ForkServerClient, directory: Path) -> None:
        self._directory = directory
        pipes = self._sharing.directories
        stage = self._resuming.stage
        crew = workers_of(part, self._config, self._environ, directory, pipes, stage)
        crew = replace(crew, workers=self._output.in_one_file(part, crew.workers))
        self._starting = crew

        def done(reply: messages.Reply | None) -> Iterable[events.Event]:
            if self._starting is not crew:
                return ()  # it was cancelled meanwhile
            if isinstance(reply, messages.Refused):
                return self._refuse(part, server, reply)
            self._starting = None
            self._start(part, server, crew)
            return ()

        errors = [worker.env[error_file.VARIABLE] for worker in crew.workers]
        store = self.store_errors
        self._output.prepare(part, crew.workers, directory, errors=errors, store=store, done=done)

    def _start(self, part: Assignment, server: ForkServerClient, crew: Crew) -> None:
        config = self._config
        server.send(
            Start(
                workers=crew.workers,
                env=crew.shared,
                store=str(self.store_errors) if part.hosts_store else "",
                peers=[*part.peers],
                warm=is_warm(part, config, self._environ),
                learn=config.start.learn,
                progress=config.progress,
                terminals=self._output.terminals(part),
                size=self._output.size,
                pipes=config.command[0] != config.python,
            )
        )
        self._note("binding", crew.placed)

    def _refuse(
        self, part: Assignment, server: ForkServerClient, refused: messages.Refused
    ) -> list[events.Event]:
        """Make the round's files elsewhere if the disk is full. Otherwise the node is unfit."""
        reason, logs = f"{refused.why}: {refused.file}", self._config.logs
        assert logs is not None, "the log service refused a file in it"
        if refused.full and self.directory == logs.round(part.round):
            try:
                substitute = logs.make_substitute(part.round)
            except OSError as e:
                why = ": ".join(str(word) for word in (e.strerror, e.filename) if word)
                reason = f"{reason}; nor in the temporary directory: {why}"
            else:
                self._record(OutputMoved(self._host, part.round, str(substitute), reason))
                self._make_files(part, server, substitute)
                return []
        self._starting = None
        return [events.HealthFound(f"cannot write logs: {reason}"), events.WorkersGone()]
