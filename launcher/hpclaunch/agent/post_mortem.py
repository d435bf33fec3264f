"""Shows the account of a job that failed, and passes on the workers' error files."""

from __future__ import annotations

from ..core.control import Control
from ..core.protocol.effects import Exit
from ..core.protocol.model import EXIT_FAILED, Verdict
from ..observe.failure_account import account
from ..system.logs import error_file
from ..system.logs.messages import HandOnError
from .adapter import Adapter
from .config import Config
from .context import Context


class PostMortem(Adapter):
    """Acts once, at the end."""

    def __init__(self, context: Context, control: Control) -> None:
        self._config, self._control = context.config, control
        self._logs, self._environ = context.logs, context.environ

    def conclude(self, end: Exit) -> None:
        verdict, directory = end.verdict, self._config.directory
        if not verdict.code:
            return
        text = account(
            verdict,
            code=exit_code(verdict, self._config),
            host=self._config.host,
            at_head=self._control.leads,
            log_dir=str(directory or ""),
            job=self._config.job,
        )
        if text:
            self._logs.service.say(text)
        wanted = self._environ.get(error_file.VARIABLE)
        if directory is not None and wanted:
            failures = [verdict.cause] if verdict.cause else []
            files = error_file.files_of((*failures, *verdict.consequences), directory)
            self._logs.service.send(HandOnError(files, wanted))


def exit_code(verdict: Verdict, config: Config) -> int:
    """Return the exit code of an agent."""
    return min(verdict.code, EXIT_FAILED) if config.as_torchrun else verdict.code
