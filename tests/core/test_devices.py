"""LOCAL_RANK is an index that torch.cuda.set_device can take."""

import pytest

from hpclaunch.core.devices import local_rank, only_device
from hpclaunch.core.errors import UsageError


@pytest.mark.parametrize(
    ("first", "offset", "nproc", "visible", "expected"),
    [
        (0, 3, 4, 4, 3),  # one task per node
        (2, 0, 1, 4, 2),  # one task per GPU, and each sees all of them
        (2, 0, 1, 1, 0),  # each sees its own one: its index is 0
        (0, 0, 1, 1, 0),
        (2, 1, 2, 2, 1),  # two tasks with two GPUs each
        (2, 1, 2, 0, 3),  # no GPU at all: a position among the workers of the node
        (0, 3, 4, 1, 3),  # four workers share a GPU
        (4, 1, 4, 2, 5),  # and so do those of the next task
    ],
)
def test_the_local_rank(first, offset, nproc, visible, expected):
    assert local_rank(first, offset, nproc, visible=visible) == expected


@pytest.mark.parametrize(
    ("local", "selection", "device"),
    [(1, None, "1"), (1, "4,5", "5"), (0, " GPU-ab , GPU-cd", "GPU-ab")],
)
def test_the_only_device_of_a_worker(local, selection, device):
    assert only_device(local, selection) == device


def test_a_worker_without_a_device():
    with pytest.raises(UsageError, match="local rank 2 has no GPU"):
        only_device(2, "0,1")
