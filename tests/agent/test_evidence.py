"""The summary of a hanging rank."""

from __future__ import annotations

import pytest

from hpclaunch.agent.evidence import state_of

BACKWARD = """Thread 0x00007f2ebbfddb80 (most recent call first):
  File "/venv/lib/python3.11/site-packages/torch/autograd/graph.py", line 7 in _engine_run_backward
  File "/home/me/train.py", line 211 in main
"""
RECORDED = {"entries": [{"state": "completed", "collective_seq_id": 1, "process_group": ["0", ""]}]}


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


@pytest.mark.parametrize(
    ("records", "busy", "waits"),
    [
        pytest.param({"entries": []}, False, ("", 0, "backward"), id="a torch without a recorder"),
        pytest.param({"entries": []}, True, None, id="it computes"),
        pytest.param(RECORDED, False, None, id="all recorded collectives are done"),
        pytest.param(None, False, None, id="it does not answer"),
    ],
)
def test_a_rank_that_is_idle_in_backward_waits_for_the_others(records, busy, waits):
    processes = [{"state": "S", "wchan": "futex_wait_queue"}]
    found = {"rank": 0, "stacks": BACKWARD, "records": records, "busy": busy}
    assert state_of({**found, "processes": processes}).waits == waits


@pytest.mark.parametrize(
    ("call", "excused"),
    [("item", False), ("synchronize", False), ("svd", True), ("", True), (None, True), ([], True)],
)
def test_a_rank_that_busily_waits_for_a_gpu_does_not_count_as_busy(call, excused):
    processes = [{"state": "R", "wchan": "0"}]
    records = {**RECORDED, "call": call}
    found = {"rank": 0, "stacks": "", "records": records, "busy": True, "processes": processes}
    assert state_of(found).busy == excused
