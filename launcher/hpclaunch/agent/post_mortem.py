"""What the user is told at the end of a job that failed: who failed, how, and what to do."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

from ..core.control import Control
from ..core.head.last_lines import advise
from ..core.head.restarts import how, who
from ..core.protocol.effects import Exit
from ..core.protocol.model import EXIT_FAILED, EXIT_USAGE, Culprit, Failure, Verdict
from ..system.logs import error_file
from .adapter import Adapter
from .config import Config
from .logs import Logs

CONSEQUENCES = 4  # that are named; the rest is counted
LINES = 14  # of all; a worker's last ones give way
LEAST = 4  # of these
WIDTH = 96  # of a paragraph; what a worker wrote is never wrapped


class PostMortem(Adapter):
    """Says at the end why the job failed, and hands on the workers' error files."""

    def __init__(
        self, config: Config, control: Control, logs: Logs, environ: Mapping[str, str]
    ) -> None:
        self._config, self._control = config, control
        self._logs, self._environ = logs, environ

    def conclude(self, end: Exit) -> None:
        verdict, logs = end.verdict, self._config.logs
        if not verdict.code:
            return
        text = account(
            verdict,
            code=exit_code(verdict, self._config),
            host=self._config.job.places[self._config.allocation.index].host,
            at_head=self._control.leads,
            log_dir="" if logs is None else str(logs.path),
        )
        if text:
            self._logs.say(text)
        if logs is not None:
            failures = [verdict.cause] if verdict.cause else []
            error_file.hand_on((*failures, *verdict.consequences), logs.path, self._environ)


def exit_code(verdict: Verdict, config: Config) -> int:
    """Return the exit code of an agent."""
    return min(verdict.code, EXIT_FAILED) if config.as_torchrun else verdict.code


def account(verdict: Verdict, *, code: int, host: str, at_head: bool, log_dir: str) -> str:
    """What one agent says at the end of a job that failed; "" when the head says it for all.

    `code` is the exit code of this agent. The head gives the whole account. The others say one
    line, since their output may go elsewhere.
    """
    if verdict.code == EXIT_USAGE and verdict.cause is None:
        return f"error: {verdict.reason}" if at_head else ""
    if at_head:
        return _post_mortem(verdict, code, log_dir)
    return f"{host}: {_summary(verdict, code)}"


def _summary(verdict: Verdict, code: int) -> str:
    return f"{verdict.reason} (exit code {code})"


def _post_mortem(verdict: Verdict, code: int, log_dir: str) -> str:
    """The head's account: which rank failed first, where, how, and what it wrote last."""
    lines = []
    if verdict.cause is not None:
        cause = verdict.cause
        if advice := advise(cause):
            lines += _paragraph("  advice: ", advice)
        if verdict.consequences:
            named = [how(f) for f in verdict.consequences[:CONSEQUENCES]]
            more = len(verdict.consequences) - len(named)
            rest = f"; and {more} more" if more else ""
            lines.append(f"  failed as a consequence: {'; '.join(named)}{rest}")
    lines.append(f"  logs: {log_dir}")
    first = [_summary(verdict, code)]
    said = [] if verdict.cause is None else _last_words(verdict.cause, LINES - len(lines))
    return "\n".join([*first, *said, *lines])


def _last_words(cause: Failure, most: int) -> list[str]:
    if not cause.tail:
        nothing = [f"  {who(cause)} wrote nothing"]
        return nothing if cause.culprit is not Culprit.FORK_SERVER else []
    last = cause.tail.splitlines()[-max(LEAST, most - 2) :]
    return [f"  the last lines of {who(cause)}:", *(f"    | {line}" for line in last)]


def _paragraph(label: str, text: str) -> list[str]:
    """Wrapped between words only, so that no option or path is split."""
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=label,
        subsequent_indent=" " * len(label),
        break_long_words=False,
        break_on_hyphens=False,
    )
