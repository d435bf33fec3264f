"""What the user is told at the end of a job that failed: who failed, how, and what to do."""

from __future__ import annotations

import textwrap

from ..core.head.advice import advise
from ..core.head.restarts import how, who
from ..core.protocol.model import EXIT_USAGE, Culprit, Verdict

CONSEQUENCES = 4  # that are named; the rest is counted
WIDTH = 96  # of a paragraph; what a worker wrote is never wrapped


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
    lines = [_summary(verdict, code)]
    if verdict.cause is not None:
        cause = verdict.cause
        if cause.tail:
            lines.append(f"  the last lines of {who(cause)}:")
            lines += [f"    | {line}" for line in cause.tail.splitlines()]
        elif cause.culprit is not Culprit.FORK_SERVER:
            lines.append(f"  {who(cause)} wrote nothing")
        if advice := advise(cause):
            lines.append(_paragraph("  advice: ", advice))
        if verdict.consequences:
            named = [how(f) for f in verdict.consequences[:CONSEQUENCES]]
            more = len(verdict.consequences) - len(named)
            rest = f"; and {more} more" if more else ""
            lines.append(f"  failed as a consequence: {'; '.join(named)}{rest}")
    lines.append(f"  logs: {log_dir}")
    return "\n".join(lines)


def _paragraph(label: str, text: str) -> str:
    """Wrapped between words only, so that no option or path is split."""
    return textwrap.fill(
        text,
        WIDTH,
        initial_indent=label,
        subsequent_indent=" " * len(label),
        break_long_words=False,
        break_on_hyphens=False,
    )
