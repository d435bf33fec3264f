"""What the user reads about one node."""

from hpclaunch.core.protocol.node_facts import ColdCause, WorkerTurnedCold
from hpclaunch.observe.node_console import words_of_node


def turned_cold(cause, name, *, is_impossible=False):
    fact = WorkerTurnedCold("n0", cause, name, "train.py", 7, is_impossible=is_impossible)
    return words_of_node(fact)


def test_a_variable():
    assert turned_cold(ColdCause.VARIABLE, "OMP_NUM_THREADS") == (
        "cold start: train.py sets OMP_NUM_THREADS in line 7, before it imports torch"
    )


def test_a_module():
    assert turned_cold(ColdCause.MODULE, "csv") == (
        "cold start: line 7 of train.py leads to another module csv than hpclaunch has loaded"
    )


def test_a_process_that_cannot_begin_anew():
    assert turned_cold(ColdCause.VARIABLE, "OMP_NUM_THREADS", is_impossible=True) == (
        "warning: train.py sets OMP_NUM_THREADS in line 7, before it imports torch, "
        "in a process that a worker has forked: start with --cold"
    )
