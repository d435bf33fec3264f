"""Hangs on one machine: real workers that make no progress are found and named."""

import json
import os
import re
import stat
from pathlib import Path

import pytest
from launching import hpclaunch, only_logs, script

from surroundings import LIGHT_TORCH, SHORT, environment

pytestmark = [pytest.mark.starts, pytest.mark.torch]

HANGING = Path(__file__).parents[1] / "slurm" / "scripts" / "hanging.py"
KINDS = ("asleep", "stopped", "holding", "skipped", "loader", "end")
# A worker that has made some steps hangs soon. What comes before takes as long as it takes.
SOON = {"least_hang": 6.0}  # a busy machine may stop one of them for some seconds


def test_each_hang_is_found_and_its_culprit_named(tmp_path):
    hangs = [f"{kind}:{number % 2}:8" for number, kind in enumerate(KINDS)]
    args = ["--nproc", 2, "--max-restarts", 9, HANGING]
    env = environment(HANGS=" ".join(hangs), TMPDIR=SHORT)  # a DataLoader has sockets there
    done = hpclaunch(*args, cwd=tmp_path, env=env, timing=SOON)
    assert done.returncode == 0, done.stderr
    said = re.sub(r"(?m)^\[rank\d\]:.*\n", "", done.stderr)  # one of them dies before the other
    accounts = re.findall(
        r"no step for .*: the workers hang\n((?:  .*\n)+)hpclaunch: (.*) hung; restart", said
    )
    assert len(accounts) == len(KINDS), done.stderr
    for number, (kind, (lines, who)) in enumerate(zip(KINDS, accounts, strict=True)):
        evidence = only_logs(tmp_path) / f"round-{number}" / "evidence"
        rank = number % 2
        if kind == "skipped":
            assert who == "the workers", done.stderr
            assert "they wait for one another, in different collectives" in lines
        else:
            assert who.startswith(f"rank {rank} on "), (kind, done.stderr)
        out = (evidence.parent / f"rank-{rank}.out").read_text()
        line = int(re.search(r"hangs in line (\d+)", out)[1])
        known = line and kind != "skipped"
        assert not known or f" hanging.py:{line}, " in lines, (kind, done.stderr)
        reported = {path.name for path in evidence.glob("rank-?.txt")}
        both = {"rank-0.txt", "rank-1.txt"}
        assert reported == both or (kind == "end" and reported == {f"rank-{rank}.txt"})
        assert {stat.S_IMODE(path.stat().st_mode) for path in evidence.iterdir()} == {0o600}
    text = (only_logs(tmp_path) / "round-0" / "evidence" / "rank-0.txt").read_text()
    assert text.startswith("rank 0, pid ")
    assert ": step, step 8\n" in text


ASLEEP = """
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
for step in range(8):
    dist.all_reduce(torch.tensor([1.0]))
    optimizer.step()
    time.sleep(0.05)
if dist.get_rank() == 1:
    time.sleep(1000)
dist.barrier()
"""
# A py-spy that is in time in the first round, and too late in the others.
PY_SPY = """#!/bin/sh
[ -d "{directory}"/hpclaunch-logs/*/round-1 ] && exec sleep 600
echo stacks of $4
"""


@pytest.fixture(scope="module")
def hangs(starts, tmp_path_factory):
    """Return a launch that hangs in each round until no restart is left, and its log directory."""
    directory = tmp_path_factory.mktemp("hangs")
    (directory / "bin").mkdir()
    (directory / "bin" / "py-spy").write_text(PY_SPY.format(directory=directory))
    (directory / "bin" / "py-spy").chmod(0o755)
    path = f"{directory}/bin:{os.environ['PATH']}"
    args = ["--nproc", 2, "--max-restarts", 1, script(directory, ASLEEP)]
    env = environment(PATH=path, PYTHONPATH=LIGHT_TORCH)
    timing = {"least_hang": 6.0, "sampling": 0.5, "core.hangs.suspicion.PATIENCE": 3}
    timing |= {"agent.evidence.PY_SPY_LIMIT": 4.0, "gathering": 60.0}
    timing |= {"system.shared.errands.ReadStacks.limit": 60.0}
    return hpclaunch(*args, cwd=directory, env=env, timing=timing), only_logs(directory)


@pytest.mark.parametrize("number", [0, 1], ids=["in time", "too late"])
def test_native_stacks_where_py_spy_is_in_path(hangs, number):
    """The real one is in tests/system/test_commands.py."""
    done, logs = hangs
    assert "  rank 1 on " in done.stderr
    evidence = logs / f"round-{number}" / "evidence"
    native = evidence / "rank-1.native.txt"
    pid = re.search(r"pid (\d+)", (evidence / "rank-1.txt").read_text())[1]
    if number:
        assert not native.exists()
    else:
        assert native.read_text() == f"stacks of {pid}\n"


def test_hangs_until_no_restart_is_left(hangs):
    done, _ = hangs
    assert done.returncode == 124, done.stderr
    assert "no restart is left: unless they make a step, the job ends in " in done.stderr
    assert "hung in round 1, and the only restart is used up" in done.stderr
    assert "  advice: the stacks of all ranks are in round-1/evidence" in done.stderr


# As torch does where it waits for a GPU, `item` uses a CPU, and keeps no lock of Python's.
WAITS_FOR_GPU = """
import functools, hashlib, os, torch
class Loss:
    item = functools.partial(hashlib.pbkdf2_hmac, "sha256", b"", b"", (1 << 31) - 1)
optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
for step in range(8):
    optimizer.step()
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    Loss().item()
"""


def test_a_rank_that_waits_for_its_gpu_is_not_excused_for_using_a_cpu(tmp_path):
    train = script(tmp_path, WAITS_FOR_GPU)
    timing = SOON | {"core.hangs.suspicion.PATIENCE": 1000}
    env = environment(PYTHONPATH=LIGHT_TORCH)
    args = ["--nproc", 1, "--max-restarts", 1, train]
    done = hpclaunch(*args, cwd=tmp_path, env=env, timing=timing)
    assert done.returncode == 0, done.stderr
    assert re.search(r"rank 0 on \S+ hung; restart 1 of 1", done.stderr)
    evidence = only_logs(tmp_path) / "round-0" / "evidence"
    assert json.loads((evidence / "rank-0.collectives.json").read_text())["call"] == "item"


def test_samples_that_are_taken_meanwhile_hide_no_hang(hangs):
    """A sample is taken after the workers' last step, and they answer it."""
    done, logs = hangs
    text = (logs / "journal.jsonl").read_text()
    answer = '"event":"WorkersAnswered","with":{"answer":{"query":{"kind":"%s"'
    last_step, evidence = text.index('"steps":[8,8]'), text.index(answer % "evidence")
    assert answer % "sample" in text[last_step:evidence]
    assert "rank 1 on " in done.stderr
    assert " hung; restart 1 of 1" in done.stderr


LEAST = 4.0  # seconds; a third of the rest
RESTING = """
import glob, time
from hpclaunch.progress import step
for number in range(8):
    step(number)
    if number == 6:
        time.sleep(12)
(journal,) = glob.glob("hpclaunch-logs/*/journal.jsonl")
while '"steps":[8]' not in open(journal).read():
    time.sleep(0.1)
"""


@pytest.mark.usefixtures("light_torch")
def test_no_round_is_ended_without_a_timeout(tmp_path):
    args = ["--nproc", 1, "--cold", "--hang-timeout", "off", script(tmp_path, RESTING)]
    done = hpclaunch(*args, cwd=tmp_path, timing={"least_hang": LEAST})
    assert (done.returncode, done.stderr) == (0, "")
    lines = (only_logs(tmp_path) / "journal.jsonl").read_text().splitlines()
    events = [
        event["with"] for event in map(json.loads, lines) if event.get("event") == "WorkersSeen"
    ]
    assert max(event["still"] for event in events) > LEAST
    assert events[-1]["steps"] == [8]


@pytest.mark.usefixtures("light_torch")
def test_nothing_is_left_in_the_workers_without_progress(tmp_path):
    text = """
import os
import torch.distributed as dist
dist.init_process_group("gloo")
kept = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if int(fd) >= 60]
print("HPCLAUNCH_PROGRESS" in os.environ, kept)
dist.destroy_process_group()
"""
    done = hpclaunch("--nproc", 1, "--progress", "off", script(tmp_path, text), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "False []\n"), done.stderr
