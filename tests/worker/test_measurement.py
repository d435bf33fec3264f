"""The measurements among real ranks with gloo: forked from one process, or started as the launcher
starts them. What is broken is broken in the rank itself: its sums, or its progress.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_hooks import LIMIT, end_well, start, worker_environment
from test_hooks import processes as processes  # fixtures
from test_hooks import store as store

import hpclaunch

pytestmark = pytest.mark.starts

SCRIPT = Path(hpclaunch.__file__).parent / "worker" / "measurement.py"

# Each rank reads what is to be wrong with it from `FAULTS[rank]`, after torch has been imported.
RANKS = """
import json, os, signal, sys, time
import torch
import torch.distributed as dist

torch.set_num_threads(1)
script, result, world, faults, limit, per_node = sys.argv[1:]
world, faults, sys.argv[1:] = int(world), json.loads(faults), [result]
multiply, reduce = torch.mm, dist.all_reduce

def miscount(a, b, out=None):
    result = multiply(a, b, out=out)
    result[3, 5] += 1
    return result

def garble(tensor, *args):
    tensor[-1] += 1
    return reduce(tensor, *args)

spoil = garble

def receive_wrong(tensor, *args):
    reduce(tensor, *args)
    tensor[-1] += len(tensor) > 9  # not in what the ranks agree on

def stop(a, b, out=None):
    os.kill(os.getpid(), signal.SIGSTOP)

def pause(tensor, *args):
    os.kill(os.getpid(), signal.SIGSTOP)

def fail(a, b, out=None):
    raise RuntimeError("CUDA error: an illegal memory access was encountered\\nmore of it")

def run():
    with open(script) as f:
        text = f.read()
    assert "\\nLIMIT = 90.0" in text
    globals = {"__name__": "__main__", "__file__": script}
    text = text.replace("\\nLIMIT = 90.0", "\\nLIMIT = " + limit)
    assert "\\nLINK_LIMIT = 20.0" in text
    if "pause" in faults.values():
        text = text.replace("\\nLINK_LIMIT = 20.0", "\\nLINK_LIMIT = 3.0")
    assert 'fault and backend == "nccl"' in text
    if "spoil" in faults.values():  # like a pair that fails with NCCL
        text = text.replace('fault and backend == "nccl"', "fault")
    exec(compile(text, script, "exec"), globals)

pids = []
for rank in range(world):
    pid = os.fork()
    if not pid:
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank))
        os.environ.update(GROUP_RANK=str(rank // int(per_node)))
        fault = faults.get(str(rank))
        if fault in ("garble", "spoil", "receive_wrong", "pause"):
            dist.all_reduce = vars()[fault]
        elif fault:
            torch.mm = vars()[fault]
        try:
            run()
        except BaseException:
            import traceback
            traceback.print_exc()
        os._exit(99)
    pids.append(pid)
codes = {}
for rank, pid in enumerate(pids):
    _, status = os.waitpid(pid, os.WUNTRACED)
    codes[rank] = -1 if os.WIFSTOPPED(status) else os.waitstatus_to_exitcode(status)
    if codes[rank] == -1:
        os.kill(pid, signal.SIGKILL)
print(json.dumps(codes))
"""


@pytest.fixture
def measured(forks, store, tmp_path):
    """Return a function that measures: (exit codes, standard error, findings)."""

    def run(world, faults=(), limit=60.0, per_node=4):
        result = tmp_path / "rows.json"
        codes, err = run_ranks(forks, store, tmp_path, world, faults, limit, per_node)
        assert os.listdir(tmp_path) == ["rows.json"]
        return codes, err, [row["finding"] for row in json.loads(result.read_text())]

    return run


def run_ranks(forks, store, directory, world, faults, limit, per_node=4):
    words = (
        str(SCRIPT),
        "rows.json",
        str(world),
        json.dumps(dict(faults)),
        str(limit),
        str(per_node),
    )
    arguments = f"import sys\nsys.argv[1:] = {words!r}\n"
    env = worker_environment(store.port())
    out, err = forks.start(arguments + RANKS, cwd=directory, env=env).communicate(timeout=LIMIT)
    assert "Traceback" not in err, err
    return list(json.loads(out).values()), err


def wrong(rows):
    return [row["found"] for row in rows if row["grade"] == "FAIL"]


@pytest.mark.parametrize("world", [1, 8])
def test_all_ranks_and_pairs_are_measured(measured, world):
    codes, err, rows = measured(world)
    assert codes == [0] * world
    assert err == ""
    assert wrong(rows) == []
    figures = [
        (row["check"], row["found"].partition(": ")[0]) for row in rows if row["grade"] == "ok"
    ]
    devices = [(check, like) for check, like in figures if check != "links"]
    assert [check for check, _ in devices] == ["compute"]
    assert all(like.startswith(f"{world} x ") for _, like in devices)
    links = [like for check, like in figures if check == "links"]
    assert links == ([] if world == 1 else ["4 x pairs across nodes, all-reduce with gloo"])


def test_a_rank_that_computes_wrong_results_is_named(measured):
    codes, err, rows = measured(5, {1: "miscount", 2: "fail", 4: "garble"})
    assert codes == [0] * 5
    assert err == ""
    first, second, third = wrong(rows)
    assert first.startswith("rank 1 on ")
    assert first.endswith(": a product of matrices is wrong")
    assert second.startswith("rank 2 on ")
    assert second.endswith("cannot compute: CUDA error: an illegal memory access was encountered")
    assert third.startswith("all-reduce between rank 0 on ")
    assert third.endswith("a wrong sum: data was corrupted")


def test_a_sum_that_only_the_second_of_a_pair_finds_wrong_is_named_so(measured):
    codes, err, rows = measured(2, {1: "receive_wrong"}, per_node=1)
    assert (codes, err) == ([0, 0], "")
    (link,) = wrong(rows)
    assert link.endswith("a wrong sum: data was corrupted")


def test_a_rank_that_hangs_is_named_and_ends_the_round(measured):
    codes, err, rows = measured(3, {1: "stop"}, limit=10.0)
    assert codes == [1, -1, 0]
    (found,) = wrong(rows)
    assert found.startswith("rank 1 on ")
    assert "no longer answers" in found
    assert err.splitlines()[-1].startswith("rank 1 on ")


def test_a_link_that_hangs_ends_by_a_limit_and_is_named(measured):
    codes, _, rows = measured(5, {4: "pause"}, limit=10.0)
    assert codes == [1, 0, 0, 0, -1]
    rank, link = wrong(rows)
    assert rank.startswith("rank 4 on ")
    assert "no longer answers" in rank
    assert link.startswith("all-reduce between rank 0 on ")
    assert ": failed: " in link


def test_a_pair_that_fails_for_good_costs_only_the_other_pairs_of_its_ranks(measured):
    codes, err, rows = measured(3, {0: "spoil"}, per_node=1)
    assert (codes, err) == ([0, 0, 0], "")
    (link,) = wrong(rows)
    assert link.startswith("all-reduce between rank 0 on ")
    (missing,) = [row["found"] for row in rows if row["grade"] == "warn"]
    assert missing.startswith("1 of 3 pairs not measured: ")


def test_a_first_rank_that_hangs_is_named_by_the_others(forks, store, tmp_path):
    codes, err = run_ranks(forks, store, tmp_path, 2, {0: "stop"}, 3.0)
    assert codes == [-1, 1]
    assert err.splitlines()[-1].startswith("rank 0, at 127.0.0.1, no longer answers")


def test_nothing_of_the_users_stands_in_for_its_own(processes, forks, store, tmp_path):
    """The launcher starts it in the user's directory and with the user's PYTHONPATH.

    The other rank, which is only needed for the measurements, is forked.
    """
    (tmp_path / "users" / "hpclaunch").mkdir(parents=True)
    (tmp_path / "users" / "hpclaunch" / "__init__.py").write_text("boom")
    for name in ("json", "torch", "measurement", "processes", "store"):
        (tmp_path / f"{name}.py").write_text("boom")
    port = store.port()
    environs = [worker_environment(port, rank, 2) | {"LOCAL_RANK": str(rank)} for rank in (0, 1)]
    env = environs[0] | {"OMP_NUM_THREADS": "1"}
    env["PYTHONPATH"] += os.pathsep + str(tmp_path / "users")
    rank = start(processes, [sys.executable, "-u", str(SCRIPT), "rows.json"], tmp_path, env)
    text = f"import runpy; runpy.run_path({str(SCRIPT)!r}, run_name='__main__')"
    end_well([rank, forks.start(text, cwd=tmp_path, env=environs[1])])


def test_without_torch_it_says_so_in_one_line(tmp_path):
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError('No module named torch')")
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, str(SCRIPT)]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == "the workers' Python has no torch: No module named torch\n"
