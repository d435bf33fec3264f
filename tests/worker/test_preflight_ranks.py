"""The preflight among real ranks with gloo: forked from one process, or started as the launcher
starts them. What is broken is broken in the rank itself: its sums, or that it goes on at all.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import pytest
from test_hooks import LIMIT, end_well, start, worker_environment
from test_hooks import processes as processes  # fixtures
from test_hooks import store as store

import hpclaunch

pytestmark = pytest.mark.starts

SCRIPT = Path(hpclaunch.__file__).parent / "worker" / "preflight.py"

# Each rank reads what is to be wrong with it from `FAULTS[rank]`, after torch has been imported.
RANKS = """
import json, os, signal, sys, time
import torch
import torch.distributed as dist

torch.set_num_threads(1)
script, world, faults, limit = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]), sys.argv[4]
multiply, reduce = torch.mm, dist.all_reduce

def miscount(a, b, out=None):
    result = multiply(a, b, out=out)
    result[3, 5] += 1
    return result

def garble(tensor, *args):
    tensor[7] += 1
    return reduce(tensor, *args)

def stop(a, b, out=None):
    os.kill(os.getpid(), signal.SIGSTOP)

def fail(a, b, out=None):
    raise RuntimeError("CUDA error: an illegal memory access was encountered\\nmore of it")

def run():
    with open(script) as f:
        text = f.read()
    assert "\\nLIMIT = 90.0" in text
    globals = {"__name__": "__main__", "__file__": script}
    exec(compile(text.replace("\\nLIMIT = 90.0", "\\nLIMIT = " + limit), script, "exec"), globals)

pids = []
for rank in range(world):
    pid = os.fork()
    if not pid:
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank))
        os.environ.update(GROUP_RANK=str(rank // 4))
        fault = faults.get(str(rank))
        if fault == "garble":
            dist.all_reduce = garble
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
def preflight(processes, store, tmp_path):
    """Runs it among `world` ranks, four per node: (exit codes, lines, result)."""

    def run(world, faults=(), limit=60.0):
        result = tmp_path / "result.json"
        (tmp_path / "ranks.py").write_text(RANKS)
        port = store.port()
        env = worker_environment(port) | {"HPCLAUNCH_PREFLIGHT_RESULT": str(result)}
        words = (str(SCRIPT), str(world), json.dumps(dict(faults)), str(limit))
        process = start(processes, [sys.executable, "ranks.py", *words], tmp_path, env)
        out, err = process.communicate(timeout=LIMIT)
        assert "Traceback" not in err, err
        *lines, codes = out.splitlines()
        assert sorted(os.listdir(tmp_path)) == ["ranks.py", "result.json"]
        return list(json.loads(codes).values()), lines, json.loads(result.read_text())

    return run


@pytest.mark.parametrize("world", [1, 8])
def test_all_ranks_and_pairs_are_measured(preflight, world):
    codes, lines, result = preflight(world)
    assert codes == [0] * world
    assert result["backend"] == "gloo"
    assert result["passed"]
    assert [rank["rank"] for rank in result["ranks"]] == list(range(world))
    for rank in result["ranks"]:
        assert rank["node"] == rank["rank"] // 4
        assert rank["compute"]["best"] >= rank["compute"]["usual"] > 0
        assert rank["memory"]["best"] >= rank["memory"]["usual"] > 0
        assert not rank["wrong"]
    pairs = {(a, b) for a, b in combinations(range(world), 2) if a // 4 == b // 4 or a % 4 == b % 4}
    assert {tuple(link["ends"]) for link in result["links"]} == pairs
    assert all(link["speed"]["best"] > 0 and not link["wrong"] for link in result["links"])
    nodes = (world + 3) // 4
    assert lines[0] == f"preflight: {world} ranks on {nodes} node{'s' * (nodes > 1)}"
    assert all(line.startswith("preflight: ") for line in lines)


def test_a_rank_that_computes_wrong_results_fails_and_is_named(preflight):
    faults = {1: "miscount", 2: "fail", 4: "garble"}
    codes, lines, result = preflight(5, faults)
    assert not result["passed"]
    fatal = [finding for finding in result["findings"] if finding["kind"] == "wrong"]
    assert [finding["ranks"] for finding in fatal] == [[1], [2], [0, 4]]
    assert codes == [3, 3, 3, 0, 3]
    assert "a product of matrices is wrong" in fatal[0]["text"]
    wrong = "cannot compute: CUDA error: an illegal memory access was encountered"
    assert fatal[1]["text"].startswith("rank 2 on ")
    assert fatal[1]["text"].endswith(wrong)
    assert "what arrives is not what was sent" in fatal[2]["text"]
    assert f"preflight: FAIL: {fatal[0]['text']}" in lines


def test_a_rank_that_hangs_is_named_by_the_others(preflight):
    codes, _, result = preflight(3, {1: "stop"}, limit=10.0)
    assert codes == [1, -1, 0]
    (fatal,) = [finding for finding in result["findings"] if finding["kind"] == "wrong"]
    assert fatal["ranks"] == [1]
    assert "is not heard of any more" in fatal["text"]
    assert [link["ends"] for link in result["links"]] == [[0, 2]]


def test_nothing_of_the_users_stands_in_for_its_own(processes, store, tmp_path):
    """As the launcher starts it: in the user's directory, and with a path of the user's."""
    (tmp_path / "users" / "hpclaunch").mkdir(parents=True)
    (tmp_path / "users" / "hpclaunch" / "__init__.py").write_text("boom")
    for name in ("json", "torch", "preflight", "processes", "store"):
        (tmp_path / f"{name}.py").write_text("boom")
    port = store.port()
    ranks = []
    for rank in range(2):
        env = worker_environment(port, rank, 2)
        env["PYTHONPATH"] += os.pathsep + str(tmp_path / "users")
        env |= {"LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"}
        ranks.append(start(processes, [sys.executable, "-u", str(SCRIPT)], tmp_path, env))
    end_well(ranks)


def test_without_torch_it_says_so_in_one_line(tmp_path):
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError('No module named torch')")
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, str(SCRIPT)]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == "preflight: the workers' Python has no torch: No module named torch\n"
