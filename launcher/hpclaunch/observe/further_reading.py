"""The section of docs/messages.md that explains an end of a job better than its message does."""

from __future__ import annotations

from ..core.head.last_lines import advise
from ..core.protocol.model import Culprit, Origin, Verdict

PAGE = "docs/messages.md"
# Ends of which a message has no room to say what can be done about them.
EXPLAINED = (
    Origin.TIME_LIMIT,
    Origin.PREEMPTION,
    Origin.REQUEUE,
    Origin.NODE_LOST,
    Origin.NODE_UNFIT,
    Origin.HEAD_LOST,
    Origin.ABSENT,
)


def section_on(verdict: Verdict) -> str:
    """Return the page and section to read, or "" if the message and its advice say as much."""
    if verdict.sequel.goes_on:
        return ""  # another run follows, so nothing has to be done
    cause = verdict.cause
    if cause is not None and cause.culprit is Culprit.HANG:
        return f"{PAGE}#hang"
    is_explained = verdict.origin in EXPLAINED
    if verdict.origin is Origin.FAILURE:
        is_explained = cause is None or not advise(cause)
    return f"{PAGE}#{verdict.origin.value.replace(' ', '-')}" if is_explained else ""
