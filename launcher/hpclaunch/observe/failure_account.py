"""The account of a job that failed: which rank failed, how, and what the user can do."""

from __future__ import annotations

import signal
import textwrap
from shlex import quote

from ..core.head.last_lines import advise
from ..core.head.restarts import how, who
from ..core.protocol.model import EXIT_USAGE, Culprit, Failure, Job, Origin, Verdict

CONSEQUENCES = 4  # consequent failures that are named; others are counted
LINES = 15  # of the account; the worker's last lines are cut to keep to it
LEAST = 4  # last lines of the worker
WIDTH = 96  # columns of a paragraph; lines of a worker are never wrapped

UNSAVED = 128 + signal.SIGTERM  # the exit code if nothing was saved since the notice
SUBMIT_AGAIN = "submit the job again: it continues from its newest checkpoint.{requeue}"
REQUEUE = " With --requeue, Slurm starts it again by itself."
SAVE_IN_TIME = (
    "let the script save when it has notice (hpclaunch.notice.due), or give a longer --notice. "
    "Submitted again with --checkpoint-dir, the job continues from its newest checkpoint."
)
HUNG = (
    "the stacks of all ranks are in round-{round}/evidence in the log directory. For work that "
    "takes long, call hpclaunch.progress.phase in the script, or give a longer --hang-timeout."
)
AFTER_NOTICE = (Origin.TIME_LIMIT, Origin.PREEMPTION, Origin.NOTICE)
# What to do under Slurm after an end that no worker has caused, if no other run follows.
ADVICE = {
    **dict.fromkeys(AFTER_NOTICE, SUBMIT_AGAIN),
    Origin.NODE_LOST: "submit the job again: with --checkpoint-dir it continues from its newest "
    "checkpoint. With --nnodes MIN:MAX and srun --no-kill a job continues without a lost node."
    "{requeue}",
    Origin.NODE_UNFIT: "report the node to the administrator, and submit the job again without it "
    "(sbatch --exclude=NODE). With spare nodes or --nnodes MIN:MAX a job continues without a "
    "broken node.",
}

PAGE = "docs/messages.md"
# The sections of the page on how a job ended. An end that the user has asked for has none.
SECTIONS = {
    Origin.FAILURE: "failure",
    Origin.TIME_LIMIT: "not-finished",
    Origin.PREEMPTION: "not-finished",
    Origin.REQUEUE: "not-finished",
    Origin.NOTICE: "not-finished",
    Origin.NODE_LOST: "node-lost",
    Origin.NODE_UNFIT: "node-unfit",
    Origin.HEAD_LOST: "head-lost",
    Origin.ABSENT: "absent",
    Origin.TROUBLE: "trouble",
}


def account(
    verdict: Verdict, *, code: int, host: str, at_head: bool, log_dir: str, job: Job
) -> str:
    """Return what an agent shows at the end of a job that failed, "" for nothing.

    `code` is the exit code of this agent. The head shows the whole account. Others show one line,
    since their output may go elsewhere, and nothing for a usage error.
    """
    if verdict.code == EXIT_USAGE and verdict.cause is None:
        return f"error: {verdict.reason}" if at_head else ""
    if at_head:
        return _post_mortem(verdict, code, log_dir, job)
    line = f"{host}: {_summary(verdict, code)}"
    # No head shows an account of its own loss.
    return f"{line}; see {section(verdict)}" if verdict.origin is Origin.HEAD_LOST else line


def section(verdict: Verdict) -> str:
    """Return the section of the documentation on this end of a job, "" if there is none."""
    is_hang = verdict.cause is not None and verdict.cause.culprit is Culprit.HANG
    name = "hang" if is_hang else SECTIONS.get(verdict.origin)
    return f"{PAGE}#{name}" if name else ""


def _summary(verdict: Verdict, code: int) -> str:
    return f"{verdict.reason} (exit code {code})"


def _post_mortem(verdict: Verdict, code: int, log_dir: str, job: Job) -> str:
    """Return the head's account: which rank failed first, where, how, and its last lines."""
    lines = []
    advice = _advice(verdict, job)
    if advice:
        lines += _paragraph("  advice: ", advice)
    if verdict.consequences:
        named = [how(f) for f in verdict.consequences[:CONSEQUENCES]]
        more = len(verdict.consequences) - len(named)
        rest = f"; and {more} more" if more else ""
        lines.append(f"  failed as a consequence: {'; '.join(named)}{rest}")
    cause = verdict.cause
    if cause is not None and cause.culprit is Culprit.WORKER and cause.tail and not advice:
        command = f"hpclaunch logs {quote(log_dir)} --rank {cause.rank}"
        lines.append(f"  all output of rank {cause.rank}: {command}")
    page = "" if verdict.sequel.is_followed else section(verdict)
    if page:
        lines.append(f"  see {page}")
    lines.append(f"  logs: {log_dir}")
    first = [_summary(verdict, code)]
    said = [] if verdict.cause is None else _last_words(verdict.cause, LINES - len(lines))
    return "\n".join([*first, *said, *lines])


def _advice(verdict: Verdict, job: Job) -> str:
    """Return what the user can do, "" if nothing is known or another run follows."""
    cause = verdict.cause
    if cause is not None:
        is_hang = cause.culprit is Culprit.HANG
        return HUNG.format(round=cause.round) if is_hang else advise(cause)
    if not job.slurm_id or verdict.sequel.is_followed:
        return ""
    if verdict.origin in AFTER_NOTICE and verdict.code == UNSAVED:
        return SAVE_IN_TIME
    return ADVICE.get(verdict.origin, "").format(requeue="" if job.requeueing.on else REQUEUE)


def _last_words(cause: Failure, most: int) -> list[str]:
    if not cause.tail:
        has_output = cause.culprit in (Culprit.WORKER, Culprit.STORE)  # that of others is not read
        return [f"  {who(cause)} wrote nothing"] if has_output else []
    last = cause.tail.splitlines()[-max(LEAST, most - 2) :]
    return [f"  the last lines of {who(cause)}:", *(f"    | {line}" for line in last)]


def _paragraph(label: str, text: str) -> list[str]:
    """Wrap a text between words only, so that no option or path is split."""
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=label,
        subsequent_indent=" " * len(label),
        break_long_words=False,
        break_on_hyphens=False,
    )
