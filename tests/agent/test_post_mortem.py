"""The account that the user reads at the end of a failed job."""

from hpclaunch.agent import post_mortem
from hpclaunch.core.head.restarts import Budget
from hpclaunch.core.protocol.model import EXIT_USAGE, Culprit, Failure, Origin, Verdict
from lines import only


def failure(rank, tail="", code=1, signal=0, **fields):
    return Failure(0, rank, f"n{rank}", code, signal, 0.0, tail, **fields)


def at_head(verdict):
    return post_mortem.account(
        verdict, code=verdict.code, host="n0", at_head=True, log_dir="/logs/7.0"
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
    advice = lines[4:-2]
    assert advice[0].startswith("  advice: the workers' Python has no such module.")
    assert all(line.startswith(" " * 10) for line in advice[1:])
    assert all(len(line) <= post_mortem.WIDTH for line in advice)
    assert lines[-2:] == [
        "  failed as a consequence: rank 1 on n1 exited with code 1",
        "  logs: /logs/7.0",
    ]


def test_an_unknown_error_has_no_advice():
    verdict = Verdict(
        3, "rank 0 on n0 exited with code 3", Origin.FAILURE, failure(0, "loss is nan", code=3)
    )
    said = at_head(verdict)
    assert "advice" not in said
    assert said.endswith("\n  see docs/messages.md#failure\n  logs: /logs/7.0")


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
    assert lines[-2:] == [
        "  failed as a consequence: rank 0 on n0 exited with code 1",
        "  logs: /logs/7.0",
    ]


def test_options_and_names_are_not_broken_across_lines():
    verdict = Verdict(1, "why", Origin.FAILURE, failure(0, "CUDA error: invalid device ordinal"))
    words = at_head(verdict).split()
    assert {"LOCAL_RANK,", "CUDA_VISIBLE_DEVICES", "(--gpus-per-task=1),"} <= set(words)


def test_the_other_agents_print_one_line():
    verdict = Verdict(1, "why", Origin.FAILURE, failure(0, "No module named 'x'"))
    line = post_mortem.account(verdict, code=1, host="n1", at_head=False, log_dir="/logs")
    assert line == "n1: why (exit code 1)"


def test_a_mistake_is_printed_once():
    verdict = Verdict(EXIT_USAGE, "no script x.py", Origin.USAGE)
    assert at_head(verdict) == "error: no script x.py"
    assert post_mortem.account(verdict, code=EXIT_USAGE, host="n1", at_head=False, log_dir="") == ""


def test_many_consequences_are_counted():
    verdict = Verdict(
        1, "why", Origin.FAILURE, failure(0, "x"), tuple(failure(r) for r in range(1, 8))
    )
    line = only(at_head(verdict), "consequence")
    assert line.endswith("rank 4 on n4 exited with code 1; and 3 more")


def test_the_exit_code_is_that_of_the_launcher():
    verdict = Verdict(137, "why", Origin.FAILURE, failure(0, "x", code=137, signal=9))
    line = post_mortem.account(verdict, code=1, host="n1", at_head=False, log_dir="/logs")
    assert line == "n1: why (exit code 1)"
