"""hpclaunch report, for launches on this machine: as text and as JSON, while they run and after."""

from __future__ import annotations

import json
import re
import signal
import stat
import subprocess
import time

import pytest
from launching import HPCLAUNCH, LIMIT, hpclaunch, script, start

from hpclaunch import cli
from hpclaunch.cli import log_directories
from surroundings import environment

pytestmark = pytest.mark.starts

TRAINS = """
import os, time, torch
optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(4))], lr=0.1)
restarted = os.environ["TORCHELASTIC_RESTART_COUNT"] != "0"
for step in range(20):
    optimizer.step()
    time.sleep(0.05)
    if step == 10 and not restarted:
        raise ValueError("a bad\\x07 batch")
"""
FOR_EVER = "import time; time.sleep(600)"


def report(cwd, *args):
    return hpclaunch("report", *args, cwd=cwd)


def lines_of(said):
    return {
        name.strip(): float(number)
        for name, number in re.findall(r"^  ([a-z -]+?) +(\d+\.\d+) ", said, re.MULTILINE)
    }


@pytest.mark.usefixtures("light_torch")
def test_a_failure_and_a_restart(in_process, tmp_path):
    done = hpclaunch("--max-restarts", 1, script(tmp_path, TRAINS), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (logs,) = (tmp_path / "hpclaunch-logs").iterdir()
    said = report(tmp_path)
    assert (said.returncode, said.stderr) == (0, "")
    assert len(said.stdout.splitlines()) <= 24
    assert max(map(len, said.stdout.splitlines())) <= 80
    assert "done: exit code 0, 1 restart, 2 rounds\n" in said.stdout
    # A busy machine may take a while to see it.
    assert re.search(r"round 0: exception, rank 0 on .*, exit code 1(; seen .*)?\n", said.stdout)
    assert "    ValueError: a bad? batch\n" in said.stdout
    named = in_process("report", f"hpclaunch-logs/{logs.name}", cwd=tmp_path)
    assert named.stdout == said.stdout
    assert in_process("report", logs.name, cwd=tmp_path).stdout == said.stdout
    facts = json.loads(in_process("report", "--json", cwd=tmp_path).stdout)
    assert sum(facts["seconds"].values()) == pytest.approx(facts["end"] - facts["begin"], rel=0.01)
    assert facts["seats"] == 1
    assert facts["seconds"]["training"] > 1.0
    assert lines_of(said.stdout)["training"] == pytest.approx(
        facts["seconds"]["training"], abs=0.01
    )
    files = [*logs.glob("facts*.jsonl"), logs / "report.json"]
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert json.loads((logs / "report.json").read_text()) == facts


@pytest.mark.usefixtures("light_torch")
def test_the_directory_of_all_launches_stands_for_the_newest(in_process, tmp_path):
    for word in ("older", "newer"):
        hpclaunch("--no-python", "echo", word, cwd=tmp_path)
    for above, below in (("hpclaunch-logs", ""), ("..", "/hpclaunch-logs")):
        here = tmp_path / "elsewhere" if below else tmp_path
        here.mkdir(exist_ok=True)
        name = f"{above}{below}"
        said = in_process("logs", name, cwd=here)
        assert said.stdout.endswith(" newer\n"), said.stderr
        assert "older" not in said.stdout
        launch = said.stdout.split()[1]
        for command in ("report", "status"):
            said = in_process(command, name, cwd=here)
            assert (said.returncode, said.stderr) == (0, "")
            assert launch in said.stdout


def test_a_report_that_fails_does_not_hide_why_the_job_did(tmp_path):
    path = script(tmp_path, "raise SystemExit(3)")
    timing = {"observe.job_report.report": None}
    done = hpclaunch("--nproc", 1, "--max-restarts", 0, path, cwd=tmp_path, timing=timing)
    assert "NoneType" in done.stderr
    assert "exit code 3" in done.stderr


def test_while_it_runs_and_after_it_was_ended(tmp_path):
    launch = start(script(tmp_path, FOR_EVER), cwd=tmp_path)
    limit = time.monotonic() + LIMIT
    while "1 round\n" not in (said := report(tmp_path).stdout):
        assert time.monotonic() < limit, said
        time.sleep(0.2)
    assert "not over, as far as is known here; 1 round\n" in said
    launch.send_signal(signal.SIGTERM)
    launch.communicate(timeout=LIMIT)
    assert "ended (user): exit code 143, 0 restarts, 1 round\n" in report(tmp_path).stdout


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        ((), "there is no launch in hpclaunch-logs here: name a Slurm job or a log directory"),
        (("local-4711",), "there is no log directory of job local-4711 in hpclaunch-logs: "),
        (("4711",), "there is no log directory of job 4711 in hpclaunch-logs: "),
        (("4711.0",), "there is no log directory of job 4711.0 in hpclaunch-logs: "),
        (("nowhere",), "cannot read nowhere: No such file or directory"),
        ((".",), "there is nothing of a launch in ."),
    ],
)
def test_a_mistake_is_one_line(in_process, tmp_path, args, complaint):
    said = in_process("report", *args, cwd=tmp_path)
    assert (said.returncode, said.stdout) == (2, "")
    assert complaint in said.stderr
    assert len(said.stderr.splitlines()) <= 2


@pytest.mark.usefixtures("light_torch")
def test_files_that_nobody_can_read_are_passed_over(in_process, tmp_path):
    hpclaunch("--no-python", "true", cwd=tmp_path)
    (logs,) = (tmp_path / "hpclaunch-logs").iterdir()
    whole = in_process("report", cwd=tmp_path).stdout
    (logs / "facts-agent-7.jsonl").write_text('{"format": 1, "fact"')
    (logs / "facts-agent-8.jsonl").write_text('{"format": 99}')
    said = in_process("report", cwd=tmp_path)
    assert said.stdout == whole
    assert said.stderr.count("ignored: ") == 2
    command = [HPCLAUNCH, "report"]
    silent = subprocess.run(
        ["sh", "-c", 'exec "$@" 2>&-', "sh", *command],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert silent.stdout == whole


def test_an_interrupt_ends_it_without_a_word(monkeypatch, capfd):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(log_directories, "chosen", interrupted)
    assert cli.main(["report"]) == 128 + signal.SIGINT
    assert capfd.readouterr() == ("", "")
