"""The last act of an agent, when nothing of the job is left: the head may have Slurm requeue it.

The other agents wait meanwhile. Where the first agent to leave ends the step
(`srun --kill-on-bad-exit`), the head would otherwise be killed before it has asked. If Slurm
refuses, the head has Slurm signal the others, which then leave.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..core.protocol.model import Job, Sequel, Verdict
from ..core.protocol.node_facts import AnotherRun, AnotherRunKind
from ..core.protocol.wording import harmless
from ..observe.node_console import words_of_another_run
from ..system.hosts import requeue
from ..system.processes.signals import wait_for_end
from ..system.shared.helper import say_now

# Seconds to wait until Slurm ends the step: after the request, and after the time it has announced.
ASKED, OVERDUE = 60.0, 120.0
READ = 3.0  # seconds for a console that is full to be read


def carry_out(verdict: Verdict, job: Job, environ: Mapping[str, str], *, leads: bool) -> None:
    """Carry out the sequel. Return once this agent may leave."""
    match verdict.sequel:
        case Sequel.LINGER:
            if leads:
                _show(AnotherRun(AnotherRunKind.LINGERS, job.slurm_id))
            wait_for_end(verdict.left + OVERDUE)
        case Sequel.END_CHAIN if leads:
            _end_chain(environ)
        case Sequel.REQUEUE if not requeue.is_possible():
            if leads:
                name = requeue.name_of(job.slurm_id, environ)
                _show(AnotherRun(AnotherRunKind.BY_SCRIPT, name))
        case Sequel.REQUEUE:
            if not leads or _requeue(job, environ):
                wait_for_end(ASKED)
            else:
                requeue.release_others(environ)


def _requeue(job: Job, environ: Mapping[str, str]) -> bool:
    """Ask Slurm to requeue the job. Return whether it does, and so is about to end this step."""
    name = requeue.name_of(job.slurm_id, environ)
    _show(AnotherRun(AnotherRunKind.FOLLOWS, name, run=job.requeueing.before + 2))
    try:
        requeue.requeue(name, environ)
    except requeue.RefusedError as e:
        _show(AnotherRun(AnotherRunKind.REFUSED, name, why=str(e)))
        return False
    return True


def _end_chain(environ: Mapping[str, str]) -> None:
    if array := environ.get("SLURM_ARRAY_JOB_ID", ""):
        try:
            requeue.cancel_rest(array)
        except requeue.RefusedError as e:
            _show(AnotherRun(AnotherRunKind.CHAIN_STAYS, array, why=str(e)))


def _show(fact: AnotherRun) -> None:
    say_now(harmless(words_of_another_run(fact)), READ)  # the log service has ended
