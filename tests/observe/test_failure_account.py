"""The account that the user reads at the end of a failed job."""

import pytest

from hpclaunch.core.ending import table
from hpclaunch.core.ending.job_end import RequeueDecision
from hpclaunch.core.head.restarts import Budget
from hpclaunch.core.protocol.model import (
    EXIT_USAGE,
    Culprit,
    EndKind,
    Failure,
    Job,
    Origin,
    Requeueing,
    Verdict,
)
from hpclaunch.observe import failure_account
from lines import only


def failure(rank, tail="", code=1, signal=0, **fields):
    return Failure(0, rank, f"n{rank}", code, signal, 0.0, tail, **fields)


JOB = Job((), slurm_id="7")


def at_head(verdict, job=JOB):
    return failure_account.account(
        verdict, code=verdict.code, host="n0", at_head=True, log_dir="/logs/7.0", job=job
    )


def elsewhere(verdict, *, code):
    return failure_account.account(
        verdict, code=code, host="n1", at_head=False, log_dir="/logs", job=JOB
    )


def test_the_whole_account_with_advice():
    tail = "Traceback (most recent call last):\nModuleNotFoundError: No module named 'x'"
    verdict = Verdict(
        1, "rank 0 on n0 exited with code 1", Origin.FAILURE, failure(0, tail), (failure(1),)
    )
    lines = at_head(verdict).splitlines()
    assert lines[:4] == [
        "rank 0 on n0 exited with code 1 (exit code 1)",
        "  the last lines of rank 0:",
        "    | Traceback (most recent call last):",
        "    | ModuleNotFoundError: No module named 'x'",
    ]
    advice = lines[4:-3]
    assert advice[0].startswith("  advice: the workers' Python has no such module.")
    assert all(line.startswith(" " * 10) for line in advice[1:])
    assert all(len(line) <= failure_account.WIDTH for line in advice)
    assert lines[-3:] == [
        "  failed as a consequence: rank 1 on n1 exited with code 1",
        "  see docs/messages.md#failure",
        "  logs: /logs/7.0",
    ]


def test_an_unknown_error_has_no_advice():
    verdict = Verdict(
        3, "rank 0 on n0 exited with code 3", Origin.FAILURE, failure(0, "loss is nan", code=3)
    )
    said = at_head(verdict)
    assert "advice" not in said
    assert said.splitlines()[-3:] == [
        "  all output of rank 0: hpclaunch logs /logs/7.0 --rank 0",
        "  see docs/messages.md#failure",
        "  logs: /logs/7.0",
    ]


def test_hanging_workers():
    cause = failure(3, "", code=124, culprit=Culprit.HANG)
    verdict = Verdict(124, "rank 3 on n3 hung", Origin.FAILURE, cause)
    said = " ".join(at_head(verdict).split())
    assert "wrote nothing" not in said
    assert "advice: the stacks of all ranks are in round-0/evidence in the log directory." in said
    assert "--hang-timeout" in said
    assert "see docs/messages.md#hang logs: /logs/7.0" in said


ASKED_FOR = (Origin.DONE, Origin.STOP, Origin.SIGNAL, Origin.SIGTERM, Origin.USAGE)
INNER = (Origin.DRAIN,)  # no verdict has it
OTHERS = [origin for origin in Origin if origin not in {*ASKED_FOR, *INNER}]


@pytest.mark.parametrize("origin", OTHERS, ids=lambda each: each.value)
def test_each_end_that_nobody_has_asked_for_has_a_section(origin):
    """One line of the head names it."""
    verdict = Verdict(1, "why", origin)
    assert only(at_head(verdict), "docs/messages.md#").startswith("  see ")


@pytest.mark.parametrize("origin", [Origin.STOP, Origin.SIGNAL, Origin.SIGTERM])
def test_an_end_that_a_user_has_asked_for_has_no_section(origin):
    assert "docs/" not in at_head(Verdict(143, "why", origin))


def test_the_loss_of_the_head_has_its_section_on_each_agent():
    said = elsewhere(Verdict(1, "the head was lost", Origin.HEAD_LOST), code=1)
    assert said == "n1: the head was lost (exit code 1); see docs/messages.md#head-lost"


NO_OTHER_RUN = Requeueing()


def decided(origin, requeueing=NO_OTHER_RUN, *, saved=False, progress=True):
    """Return the final verdict on a job of Slurm that no worker has caused, as the head decides."""
    job = Job((), slurm_id="7", saves=True, requeueing=requeueing)
    ended = table.verdict(origin, "why", saved=saved)
    return RequeueDecision(job).decide(ended, 0.0, progress=progress), job


ENDS_OF_SLURM = (Origin.TIME_LIMIT, Origin.PREEMPTION, Origin.NOTICE)


@pytest.mark.parametrize("origin", ENDS_OF_SLURM)
def test_a_job_that_saved_in_time_is_to_be_submitted_again(origin):
    said = at_head(*decided(origin, saved=True))
    assert "\n  advice: submit the job again: it continues from its newest checkpoint." in said
    assert "With --requeue, Slurm starts it again by itself." in " ".join(said.split())


@pytest.mark.parametrize("origin", [Origin.TIME_LIMIT, Origin.PREEMPTION])
def test_a_job_that_did_not_save_in_time_is_to_save_at_the_notice(origin):
    said = " ".join(at_head(*decided(origin)).split())
    assert "advice: let the script save when it has notice (hpclaunch.notice.due)" in said


@pytest.mark.parametrize(
    ("origin", "advice"),
    [(Origin.NODE_LOST, "submit the job again"), (Origin.NODE_UNFIT, "report the node")],
)
def test_too_few_nodes_are_left(origin, advice):
    verdict, job = decided(origin)
    assert f"\n  advice: {advice}" in at_head(verdict, job)
    without_slurm = Job((), saves=True)
    assert "advice" not in at_head(verdict, without_slurm)


EVERY_KIND = (EndKind.TIME_LIMIT, EndKind.PREEMPTION, EndKind.NODE_FAILURE)


@pytest.mark.parametrize("is_chain", [False, True], ids=["--requeue", "--chain"])
@pytest.mark.parametrize("origin", [*ENDS_OF_SLURM, Origin.NODE_LOST, Origin.NODE_UNFIT])
def test_nothing_is_to_be_done_if_another_run_follows(origin, is_chain):
    wanted = Requeueing(EVERY_KIND, most=100, is_chain=is_chain)
    said = at_head(*decided(origin, wanted, saved=True))
    assert "advice" not in said
    assert "docs/" not in said


@pytest.mark.parametrize("is_chain", [False, True], ids=["--requeue", "--chain"])
def test_there_is_advice_if_no_other_run_follows_for_want_of_progress(is_chain):
    wanted = Requeueing(EVERY_KIND, most=100, before=1, is_chain=is_chain)
    said = at_head(*decided(Origin.NODE_LOST, wanted, progress=False))
    assert "it is not started again: this run saved no checkpoint that is further" in said
    assert "\n  advice: submit the job again" in said
    assert "--requeue" not in said


def test_a_worker_that_was_killed_and_wrote_nothing():
    verdict = Verdict(137, "rank 0 was killed", Origin.FAILURE, failure(0, code=137, signal=9))
    lines = at_head(verdict).splitlines()
    assert lines[1] == "  rank 0 wrote nothing"
    assert lines[2].startswith("  advice: only the kernel or a person sends this signal.")


def test_a_fork_server_that_was_killed():
    """No rank is at fault, and no output is shown; the advice is that for a killed worker."""
    cause = failure(2, code=137, signal=9, culprit=Culprit.FORK_SERVER)
    peer = failure(0, code=1)
    budget = Budget(1)
    assert budget.spend([cause], saves=False) is None
    lines = at_head(budget.spend([peer, cause], saves=False)).splitlines()
    assert lines[0] == (
        "the fork server on n2 was killed with its workers in round 0, and the only restart is "
        "used up (exit code 137)"
    )
    assert lines[1].startswith("  advice: only the kernel or a person sends this signal.")
    assert lines[-3:] == [
        "  failed as a consequence: rank 0 on n0 exited with code 1",
        "  see docs/messages.md#failure",
        "  logs: /logs/7.0",
    ]


def test_options_and_names_are_not_broken_across_lines():
    verdict = Verdict(1, "why", Origin.FAILURE, failure(0, "CUDA error: invalid device ordinal"))
    words = at_head(verdict).split()
    assert {"LOCAL_RANK,", "CUDA_VISIBLE_DEVICES", "(--gpus-per-task=1),"} <= set(words)


def test_the_other_agents_print_one_line():
    verdict = Verdict(1, "why", Origin.FAILURE, failure(0, "No module named 'x'"))
    said = elsewhere(verdict, code=1)
    assert said == "n1: why (exit code 1)"


def test_a_mistake_is_printed_once():
    verdict = Verdict(EXIT_USAGE, "no script x.py", Origin.USAGE)
    assert at_head(verdict) == "error: no script x.py"
    assert elsewhere(verdict, code=EXIT_USAGE) == ""


def test_many_consequences_are_counted():
    verdict = Verdict(
        1, "why", Origin.FAILURE, failure(0, "x"), tuple(failure(r) for r in range(1, 8))
    )
    line = only(at_head(verdict), "consequence")
    assert line.endswith("rank 4 on n4 exited with code 1; and 3 more")


def test_the_exit_code_is_that_of_the_launcher():
    verdict = Verdict(137, "why", Origin.FAILURE, failure(0, "x", code=137, signal=9))
    said = elsewhere(verdict, code=1)
    assert said == "n1: why (exit code 1)"
