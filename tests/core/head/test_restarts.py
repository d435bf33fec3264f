"""The cause of a failed round, and the decision on another round."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpclaunch.core.head.restarts import MAX_CONSEQUENCES, Budget, failed, how, in_order
from hpclaunch.core.protocol.events import CheckpointChosen
from hpclaunch.core.protocol.model import Culprit, Failure, WorkerExit
from hpclaunch.core.protocol.values import replace
from hpclaunch.core.protocol.wording import signal_name

SERVER = Culprit.FORK_SERVER


def failure(rank, at, code=1, signal=0, **fields):
    tail = f"rank {rank} was here"
    return Failure(0, rank, f"n{rank // 2}", code, signal, at, tail=tail, **fields)


# Failures, and their ranks with the cause first.
CAUSES = {
    "the only one": ([failure(3, 5.0)], [3]),
    "the earliest": ([failure(0, 5.2), failure(1, 5.0), failure(2, 5.1)], [1, 2, 0]),
    "a signal before an exit at the same moment": (
        [failure(0, 5.0), failure(1, 5.0, 137, 9)],
        [1, 0],
    ),
    "an exit before a later abort": ([failure(0, 5.0), failure(1, 5.1, 134, 6)], [0, 1]),
    "an exit before a peer that crashes as it ends": (
        [failure(0, 5.0), failure(1, 5.1, 139, 11)],
        [0, 1],
    ),
    "a kill that is reported late": ([failure(0, 5.0), failure(2, 5.4, 137, 9)], [2, 0]),
    "an exit long before a kill": ([failure(0, 5.0), failure(2, 6.1, 137, 9)], [0, 2]),
    "a fork server, however late it is missed": (
        [
            failure(0, 5.0),
            failure(2, 5.2, 137, 9, culprit=SERVER),
            failure(1, 5.1, 139, 11),
        ],
        [2, 0, 1],
    ),
    "else the lower rank": ([failure(2, 5.0), failure(1, 5.0)], [1, 2]),
}


@pytest.mark.parametrize(("failures", "expected"), CAUSES.values(), ids=CAUSES)
def test_cause(failures, expected):
    assert [f.rank for f in in_order(failures)] == expected


def spent(*rounds, most, saves=False, checkpoints=()):
    """Return the budget's verdict on the last of these rounds, which failed one after the other."""
    budget, paths = Budget(most), iter(checkpoints)
    verdict = budget.begin(CheckpointChosen(next(paths, "")))
    for failures in rounds:
        assert verdict is None
        verdict = budget.spend(failures, saves=saves) or budget.begin(
            CheckpointChosen(next(paths, ""))
        )
    return verdict


def oops(words="ValueError: oops", code=1, **fields):
    return [replace(failure(0, 1.0, code, **fields), tail=f"Traceback\n{words}\n")]


KILLED = [failure(0, 1.0, 137, 9)]
A, B = oops("ValueError: a"), oops("ValueError: b")


@pytest.mark.parametrize(
    ("rounds", "most", "ends"),
    [
        ([KILLED], 3, False),
        ([KILLED] * 3, 3, False),
        ([KILLED] * 4, 3, True),
        ([KILLED], 0, True),
        ([A, B, A], 3, False),
        ([A, A], 3, True),  # a crash loop
        ([A, KILLED, A], 3, False),
    ],
)
def test_budget(rounds, most, ends):
    assert (spent(*rounds, most=most) is not None) is ends


@pytest.mark.parametrize(
    ("rounds", "checkpoints", "ends"),
    [
        ([KILLED] * 2, ["", ""], False),
        ([KILLED] * 3, ["", "", "", ""], True),
        ([KILLED] * 3, ["", "", "", "1.pt"], False),  # given back
        ([KILLED] * 3, ["0.pt", "0.pt", "0.pt", "0.pt"], True),  # of an earlier job
        ([KILLED] * 5, ["", "", "", "1.pt", "1.pt", "1.pt"], True),
        ([A, A], ["", "", "1.pt"], False),
        ([A, A], ["", "1.pt", "1.pt"], True),
    ],
)
def test_progress_gives_back_what_was_spent(rounds, checkpoints, ends):
    assert (spent(*rounds, most=2, saves=True, checkpoints=checkpoints) is not None) is ends


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("ModuleNotFoundError: No module named 'numpyy'", 1),
        ("ImportError: cannot import name 'x' from 'y'", 1),
        ("SyntaxError: invalid syntax", 1),
        ("train.py: error: unrecognized arguments: --lrr", 2),
        ("python: can't open file '/x/train.py': [Errno 2] No such file or directory", 2),
    ],
)
def test_what_would_fail_again_is_not_tried_again(words, code):
    verdict = spent(oops(words, code), most=3)
    assert verdict.reason.endswith(f"in round 0, and it would fail again: {words}")
    assert verdict.code == code
    assert spent(KILLED, oops(words, code), most=3) is None  # it has worked before


def test_a_crash_loop_is_reported():
    assert spent(A, A, most=5).reason == (
        "rank 0 on n0 exited with code 1 in round 0, and the round before failed in the same way, "
        "with no checkpoint in between: ValueError: a"
    )


@pytest.mark.parametrize(("newer", "restarts"), [("", 1), ("/c/2.pt", 2)])
def test_a_failure_after_which_the_job_ends_is_no_restart(newer, restarts):
    budget = Budget(3)
    budget.begin(CheckpointChosen("/c/1.pt"))
    budget.spend(oops(), saves=True)
    budget.begin(CheckpointChosen("/c/1.pt"))
    budget.spend(oops(), saves=True)
    assert budget.total == 1  # whether there is a newer checkpoint is not known yet
    verdict = budget.begin(CheckpointChosen(newer or "/c/1.pt", time=1 if newer else 0))
    assert (verdict is None) == bool(newer)
    assert budget.total == restarts


def test_the_same_crash_of_another_rank_is_the_same():
    """With a process group, torch begins each line of a traceback with the rank."""
    crashes = [oops(f"[rank{rank}]: ValueError: a") for rank in range(2)]
    assert spent(*crashes, most=5).reason.endswith("no checkpoint in between: ValueError: a")


OUTAGES = [
    "OSError: [Errno 5] Input/output error: '/data/shard-3'",
    "OSError: [Errno 116] Stale file handle",
    "ConnectionResetError: [Errno 104] Connection reset by peer",
    "TimeoutError",
    "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='hub', port=443)",
    "urllib3.exceptions.ReadTimeoutError: HTTPSConnectionPool",
    "botocore.exceptions.EndpointConnectionError: Could not connect to the endpoint URL",
    "torch.distributed.DistNetworkError: The client socket has failed to connect",
    "RuntimeError: [../third_party/gloo/x.cc:81] Timed out waiting 1800000ms for recv operation",
    "RuntimeError: write(): fd 3 failed with No space left on device",  # so torch.save says it
    "RuntimeError: [enforce fail at inline_container.cc:672] . unexpected pos 576 vs 534",
    "RuntimeError: basic_ios::clear: iostream error",
    "safetensors_rust.SafetensorError: Error: IoError(Disk quota exceeded (os error 122))",
]


@pytest.mark.parametrize("prefix", ["", "[rank12]: "])
@pytest.mark.parametrize("words", OUTAGES)
def test_what_may_pass_is_tried_again(words, prefix):
    outage = oops(prefix + words)
    assert spent(*[outage] * 10, most=10) is None
    assert "all 10 restarts are used up" in spent(*[outage] * 11, most=10).reason


@pytest.mark.parametrize("words", ["FileNotFoundError: [Errno 2] data.csv", "KeyError: 'timeout'"])
def test_what_will_not_pass(words):
    assert "the round before failed in the same way" in spent(*[oops(words)] * 2, most=10).reason


def test_a_file_system_is_given_time():
    budget, delays = Budget(100), []
    for _ in range(8):
        budget.spend(oops(OUTAGES[0]), saves=False)
        delays.append(budget.outage_delay)
    assert delays == [0, 1, 2, 4, 8, 16, 30, 30]
    budget.spend(KILLED, saves=False)
    assert budget.outage_delay == 0


# The hosts of the causes of some rounds ("-": not known), and how long to wait after the last.
DELAYS = {
    "once": ("n0", 0),
    "twice": ("n0 n0", 0),
    "three times": ("n0 n0 n0", 1),
    "four times": ("n1 n0 n0 n0 n0", 2),
    "another one in between": ("n0 n0 n1 n0 n0", 0),
    "without end": ("n0 " * 20, 30),
    "hangs without a culprit": ("- - - -", 0),
}


@pytest.mark.parametrize(("hosts", "delay"), DELAYS.values(), ids=DELAYS)
def test_a_node_that_fails_again_and_again_is_given_time(hosts, delay):
    budget = Budget(100)
    for at, host in enumerate(hosts.split()):
        budget.begin(CheckpointChosen(""))
        budget.spend([replace(failure(0, at), host=host.strip("-"), tail="")], saves=False)
    assert budget.node_delay == delay


STEPS = st.one_of(
    st.sampled_from(["", "1.pt", "2.pt", "3.pt"]),  # a round begins with it
    st.builds(
        lambda host, words, code: [replace(failure(0, 1.0, code), host=host, tail=words)],
        st.sampled_from(["n0", "n1"]),
        st.sampled_from(["", "ValueError: a", "ValueError: b"]),
        st.sampled_from([1, 2, 137]),
    ),
)


@given(st.lists(STEPS, max_size=12), st.integers(0, 3), st.booleans(), st.booleans())
def test_the_budget_of_another_head_continues_where_the_last_one_ended(steps, most, saves, spares):
    one, other = Budget(most), Budget(most)
    for step in steps:
        another = Budget(most)
        another.tally = other.tally
        other = another
        said = [
            budget.begin(CheckpointChosen(step))
            if isinstance(step, str)
            else budget.spend(step, saves=saves, spares=spares)
            for budget in (one, other)
        ]
        assert said[0] == said[1]
        assert (one.tally, one.node_delay) == (other.tally, other.node_delay)
        if not isinstance(step, str):  # for the one who has just asked
            assert one.suspect == other.suspect
        if said[0] is not None:
            return


def test_a_name_that_is_no_text_can_be_a_checkpoint():
    """A checkpoint's name need not be UTF-8."""
    budget = Budget(1)
    assert budget.begin(CheckpointChosen("/c/\udcff.pt")) is None
    assert budget.spend(KILLED, saves=True) is None
    assert budget.begin(CheckpointChosen("/c/\udcff.pt")) is None
    assert budget.used == 1


def test_the_verdict_has_the_code_of_the_cause():
    """128 + n for signal n, as a shell has it."""
    followers = [failure(1, 5.3), failure(2, 5.4)]
    verdict = spent(KILLED, KILLED, [*followers, failure(0, 5.0, 139, 11)], most=2)
    assert verdict.code == 139
    assert verdict.cause.rank == 0
    assert verdict.cause.tail == "rank 0 was here"
    assert verdict.reason == (
        "rank 0 on n0 was killed by SIGSEGV in round 0, and all 2 restarts are used up"
    )
    assert [(f.rank, f.tail) for f in verdict.consequences] == [(1, ""), (2, "")]


@pytest.mark.parametrize(
    ("budget", "words"),
    [
        (0, "no restarts were allowed (--max-restarts 0)"),
        (1, "the only restart is used up"),
        (2, "all 2 restarts are used up"),
    ],
)
def test_the_verdict_says_what_was_spent(budget, words):
    verdict = spent(*[KILLED] * (budget + 1), most=budget)
    assert verdict.reason == f"rank 0 on n0 was killed by SIGKILL in round 0, and {words}"


def test_a_verdict_stays_small_however_many_fail():
    verdict = spent([failure(rank, float(rank)) for rank in range(4096)], most=0)
    assert len(verdict.consequences) == MAX_CONSEQUENCES


@pytest.mark.parametrize(
    ("what", "words"),
    [
        (failure(3, 0.0, 2), "rank 3 on n1 exited with code 2"),
        (failure(0, 0.0, 137, 9), "rank 0 on n0 was killed by SIGKILL"),
        (failure(0, 0.0, 168, 40), "rank 0 on n0 was killed by signal 40"),
        (
            failure(3, 0.0, 137, 9, culprit=SERVER),
            "the fork server on n1 was killed with its workers",
        ),
    ],
)
def test_how(what, words):
    assert how(what) == words


def test_signals_without_a_name():
    assert signal_name(15) == "SIGTERM"
    assert signal_name(41) == "signal 41"


@pytest.mark.parametrize(
    ("code", "signum", "stopped", "expected"),
    [
        (0, 0, False, False),
        (1, 0, False, True),
        (143, 15, False, True),  # by somebody else's hand
        (143, 15, True, False),
        (137, 9, True, False),
        (1, 0, True, True),
        (134, 6, True, True),
    ],
)
def test_what_counts_as_a_failure(code, signum, stopped, expected):
    assert failed(WorkerExit(0, code, signum, 0.0, stopped, "")) is expected


def test_what_was_stopped_is_never_the_cause():
    early = Failure(0, 1, "n1", 1, 0, at=1.0, tail="", stopped=True)
    late = Failure(0, 2, "n2", 7, 0, at=2.0, tail="")
    assert in_order([early, late]) == (late, early)
