"""What the user reads about cold starts."""

from hpclaunch.core.source.reasons import of_restart


def test_a_variable():
    assert of_restart("variable", "OMP_NUM_THREADS", "train.py", 7, forked=False) == (
        "cold start: train.py sets OMP_NUM_THREADS in line 7, before it imports torch"
    )


def test_a_module():
    assert of_restart("module", "csv", "train.py", 7, forked=False) == (
        "cold start: line 7 of train.py leads to another module csv than hpclaunch has loaded"
    )


def test_a_process_that_cannot_begin_anew():
    assert of_restart("variable", "OMP_NUM_THREADS", "train.py", 7, forked=True) == (
        "warning: train.py sets OMP_NUM_THREADS in line 7, before it imports torch, "
        "in a process that a worker has forked: start with --cold"
    )
