"""The output of faulthandler, parsed."""

from __future__ import annotations

from hpclaunch.core.hangs import tracebacks

LOADING = """\
Thread 0x00007f34116d26c0 (most recent call first):
  File "/opt/hpclaunch/worker/site/_hpclaunch_progress.py", line 252 in _answer

Current thread 0x00007f34359bbb80 [MainThread] (most recent call first):
  File "/usr/lib/python3.11/queue.py", line 180 in get
  File "/home/me/loader.py", line 88 in next_batch
  File "/home/me/train.py", line 12 in <module>
"""
REDUCING = """\
Current thread 0x00007f34359bbb80 (most recent call first):
  File "/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 2 in wait
  File "/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3 in barrier
  File "/env/lib/python3.11/site-packages/torch/distributed/c10d_logger.py", line 81 in wrapper
  File "/home/me/train.py", line 30 in main
"""
PASSING_ON = """\
Current thread 0x00007f34359bbb80 (most recent call first):
  File "/env/lib/python3.11/site-packages/torch/distributed/pipelining/schedules.py", line 6 in \
_wait_batch_p2p
  File "/env/lib/python3.11/site-packages/torch/distributed/pipelining/schedules.py", line 8 in step
  File "/home/me/train.py", line 31 in main
"""
OF_A_CHILD = """\
Current thread 0x00007f34359bbb81 (most recent call first):
  File "/home/me/data.py", line 7 in __getitem__
"""


def test_a_line_that_no_file_has():
    odd = LOADING.replace("line 88 in", f"line {'8' * 5000} in")
    assert tracebacks.place(tracebacks.main_thread(odd)) == "train.py:12, <module>"


def test_the_place_is_the_innermost_line_of_the_script():
    assert tracebacks.place(tracebacks.main_thread(LOADING)) == "loader.py:88, next_batch"
    assert tracebacks.place(tracebacks.main_thread(REDUCING)) == "train.py:30, main"


def test_a_place_without_any_code_of_the_script():
    text = 'Thread 0x1 (most recent call first):\n  File "/lib/python3.11/ssl.py", line 5 in read\n'
    assert tracebacks.place(tracebacks.main_thread(text)) == "ssl.py:5, read"
    assert tracebacks.place(tracebacks.main_thread("")) == ""


def test_the_collective_is_the_outermost_function_of_torchs():
    assert tracebacks.collective(tracebacks.main_thread(REDUCING)) == "barrier"
    assert tracebacks.collective(tracebacks.main_thread(LOADING)) == ""


def test_a_stage_of_a_pipeline_that_waits_for_another():
    stack = tracebacks.main_thread(PASSING_ON)
    assert tracebacks.collective(stack) == "batch_isend_irecv"
    assert tracebacks.place(stack) == "train.py:31, main"


def test_collectives_that_no_stack_names():
    torch = "/env/lib/python3.11/site-packages/torch"
    own = tracebacks.Frame("/home/me/train.py", 7, "main")
    backward = tracebacks.Frame(f"{torch}/autograd/graph.py", 769, "_engine_run_backward")
    begins = tracebacks.Frame(f"{torch}/distributed/utils.py", 298, "_sync_module_states")
    assert tracebacks.implied_collective([backward, own]) == "backward"
    assert tracebacks.implied_collective([begins, own]) == "broadcast"
    assert tracebacks.implied_collective([own, backward, own]) == ""  # of a function of the user's
    assert tracebacks.implied_collective([]) == ""


def test_a_debugger():
    text = 'Thread 0x1 (most recent call first):\n  File "/lib/python3.11/bdb.py", line 5 in f\n'
    assert tracebacks.is_debugged(tracebacks.main_thread(text))
    assert not tracebacks.is_debugged(tracebacks.main_thread(LOADING))


def test_a_line_that_is_cut_off_is_left_out():
    assert len(tracebacks.main_thread(LOADING[:-20])) == 2
