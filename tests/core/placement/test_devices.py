"""The GPUs of each worker, and whether it sees the others."""

import pytest

from hpclaunch.core.placement.devices import Task, only_device, share_out
from hpclaunch.core.protocol.errors import UsageError
from hpclaunch.core.protocol.model import NO_SHARES, Share, Shares

FOUR = ("a", "b", "c", "d")


def shared(*tasks, per_worker=1, isolate=False):
    """Return the GPUs of each worker and whether it sees others, for tasks as (workers, GPUs)."""
    out = share_out([Task(n, gpus) for n, gpus in tasks], per_worker=per_worker, isolate=isolate)
    assert len({s.isolated for s in out if s.of}) == 1, "the workers of a node are alike"
    held = [
        [tuple(gpus[i] for i in share.gpus) for share in s.of]
        for (_, gpus), s in zip(tasks, out, strict=True)
    ]
    return held, any(s.isolated for s in out)


@pytest.mark.parametrize(
    ("tasks", "held", "isolated"),
    [
        ([(4, FOUR)], [[("a",), ("b",), ("c",), ("d",)]], False),
        ([(2, FOUR)], [[("a",), ("b",)]], False),
        # One task per GPU, each of which sees all: LOCAL_RANK counts on the node
        ([(1, FOUR)] * 4, [[("a",)], [("b",)], [("c",)], [("d",)]], False),
        ([(2, FOUR)] * 2, [[("a",), ("b",)], [("c",), ("d",)]], False),
        # each sees its own (--gpus-per-task): device 0, whatever LOCAL_RANK says
        ([(1, ("a",)), (1, ("b",))], [[("a",)], [("b",)]], True),
        ([(2, ("a", "b")), (2, ("c", "d"))], [[("a",), ("b",)], [("c",), ("d",)]], True),
        # Several workers share a GPU, and neighbours do
        ([(3, ("a",))], [[("a",), ("a",), ("a",)]], True),
        ([(1, ("a",))] * 3, [[("a",)]] * 3, True),
        ([(5, ("a", "b"))], [[("a",), ("a",), ("a",), ("b",), ("b",)]], True),
        ([(2, ("a", "b"))] * 2, [[("a",), ("a",)], [("b",), ("b",)]], True),
    ],
)
def test_who_has_which(tasks, held, isolated):
    assert shared(*tasks) == (held, isolated)


def test_several_gpus_for_each():
    pairs = [[("a", "b"), ("c", "d")]]
    assert shared((2, FOUR), per_worker=2, isolate=True) == (pairs, True)
    assert shared((1, FOUR), (1, FOUR), per_worker=2, isolate=True)[0] == [[p] for p in pairs[0]]
    assert shared((3, FOUR), per_worker=4, isolate=True)[0] == [[FOUR] * 3]


def test_who_leads_those_that_share():
    (of,) = share_out([Task(3, ("a", "b"))], per_worker=1, isolate=False)
    assert of.of == (Share((0,), 2, leads=True), Share((0,), 2, leads=False), Share((1,)))
    first, second = share_out([Task(1, ("a",))] * 2, per_worker=1, isolate=False)
    assert [first.of[0].leads, second.of[0].leads] == [True, False]
    assert first.of[0].sharers == second.of[0].sharers == 2


def test_no_gpu_no_share():
    assert share_out([Task(4, ())], per_worker=1, isolate=True) == [NO_SHARES] == [Shares()]


@pytest.mark.parametrize(
    ("local", "selection", "device"),
    [(1, None, "1"), (1, "4,5", "5"), (0, " GPU-ab , GPU-cd", "GPU-ab")],
)
def test_the_only_device_of_a_worker(local, selection, device):
    assert only_device(local, selection) == device


def test_a_worker_without_a_device():
    with pytest.raises(UsageError, match="local rank 2 has no GPU"):
        only_device(2, "0,1")
