"""What an agent does once the job is over and nothing of it is left here: Slurm may be asked to
start it again.

The head does that, and the others wait meanwhile: where the first agent that leaves ends the step
(`srun --kill-on-bad-exit`), the head would be killed before it has asked. Where Slurm does not end
the step then, the head has it signal the others.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping

from ..core.protocol.model import Job, Sequel, Verdict
from ..core.protocol.wording import harmless
from ..system.hosts import requeue
from ..system.processes.signals import wait_for_end

# Seconds to wait for the end that Slurm brings: after it was asked, and after the time it has told.
ASKED, OVERDUE = 60.0, 120.0


def carry_out(verdict: Verdict, job: Job, environ: Mapping[str, str], *, leads: bool) -> None:
    """Returns when this agent may leave, if it is not killed before."""
    match verdict.sequel:
        case Sequel.LEAVE:
            pass
        case Sequel.LINGER:
            if leads:
                _say(f"job {job.slurm_id} waits for its preemption, to be started again by Slurm")
            wait_for_end(verdict.left + OVERDUE)
        case Sequel.END_CHAIN:
            if leads:
                _end_chain(environ)
        case Sequel.REQUEUE if not requeue.is_possible():
            if leads:
                name = requeue.name_of(job.slurm_id, environ)
                _say(f"job {name} is to be requeued by its script: there is no scontrol here")
        case Sequel.REQUEUE:
            asked = not leads or _requeue(job, environ)
            if asked:
                wait_for_end(ASKED)
            else:
                requeue.release_others(environ)


def _requeue(job: Job, environ: Mapping[str, str]) -> bool:
    """Return whether Slurm is about to end this step, to start the job again."""
    name = requeue.name_of(job.slurm_id, environ)
    _say(f"job {name} is requeued: run {job.requeueing.before + 2} follows")
    try:
        requeue.requeue(name, environ)
    except requeue.RefusedError as e:
        _say(f"job {name} was not requeued: {e}")
        return False
    return True


def _end_chain(environ: Mapping[str, str]) -> None:
    array = environ.get("SLURM_ARRAY_JOB_ID", "")
    if not array:
        return
    try:
        requeue.cancel_rest(array)
    except requeue.RefusedError as e:
        _say(f"the rest of array {array} was not cancelled: {e}")


def _say(text: str) -> None:
    """The log service, which shows what agents say, has ended."""
    with contextlib.suppress(OSError):  # nobody reads it
        os.write(2, f"hpclaunch: {harmless(text)}\n".encode(errors="replace"))
