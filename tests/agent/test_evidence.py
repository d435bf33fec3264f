"""What is told of a hanging rank in short."""

from __future__ import annotations

import pytest

from hpclaunch.agent.evidence import state_of


@pytest.mark.parametrize(
    ("states", "state"),
    [
        pytest.param([("S", "pipe_read")], "S", id="it waits"),
        pytest.param([("S", "pipe_read"), ("D", "rpc_wait_bit_killable")], "D", id="NFS"),
        pytest.param([("S", "request_wait_answer")], "D", id="a file system in user space"),
        pytest.param([("S", "ep_poll"), ("T", "do_signal_stop")], "T", id="a child is stopped"),
    ],
)
def test_the_state_of_a_rank_is_the_worst_of_its_processes(states, state):
    processes = [{"state": each, "wchan": wchan} for each, wchan in states]
    found = {"rank": 3, "stacks": "", "records": None, "busy": False, "processes": processes}
    assert state_of(found).state == state
