"""docs/for-agents.md and docs/options.md: the fields and the codes that they name are there."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hpclaunch.core.protocol import model, stages
from surroundings import environment

DOCS = Path(__file__).parents[2] / "docs"
HPCLAUNCH = Path(sys.executable).parent / "hpclaunch"
LIMIT = 120
SCRIPT = """\
import os, sys, time
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    sys.exit("the first round fails")
while not os.path.exists("over"):
    time.sleep(0.02)
"""
ROW = re.compile(r"^\| (status|report|checkpoints) \| ([^|]*) \|", re.MULTILINE)


def fields(command: str) -> list[str]:
    """Return the fields that the page names, such as job.agents[].steps."""
    cells = [cell for name, cell in ROW.findall(page("for-agents")) if name == command]
    return re.findall(r"`(.+?)`", " ".join(cells))


def page(name: str) -> str:
    return (DOCS / f"{name}.md").read_text()


def value(found: Any, field: str) -> Any:
    """Return the value of a field in `found`, from the first element of each list."""
    for name in field.split("."):
        found = found[name.removesuffix("[]")]
        found = found[0] if name.endswith("[]") else found
    return found


@pytest.mark.starts
def test_the_fields_are_there(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "ckpt").mkdir()
    (tmp_path / "ckpt" / "epoch-1.pt").write_bytes(b"no archive")

    def answer(*words: str) -> Any:
        done = subprocess.run(
            [HPCLAUNCH, *words, "--json"],
            cwd=tmp_path,
            env=environment(),
            stdout=subprocess.PIPE,
        )
        return json.loads(done.stdout) if done.returncode == 0 else []

    command = [HPCLAUNCH, "--nproc", "1", "--rdzv-id", "documented", "--log-dir", "logs"]
    job = subprocess.Popen([*command, "train.py"], cwd=tmp_path, env=environment())
    try:
        deadline = time.monotonic() + LIMIT
        while not (tmp_path / "logs" / "round-1" / "rank-0.out").exists():
            assert time.monotonic() < deadline, "no second round"
            time.sleep(0.05)

        def launches() -> list[Any]:
            """Return this launch as it is in the second round, unless it answers too late."""
            mine = [each for each in answer("status") if each["logs"] == str(tmp_path / "logs")]
            return [each for each in mine if each["job"]["restarts"] == 1]

        while not (found := launches()):
            assert time.monotonic() < deadline, "no answer"
        assert len([value(found[0], field) for field in fields("status")]) > 5
    finally:
        (tmp_path / "over").touch()
        try:
            job.wait(LIMIT)
        finally:
            job.kill()
    report = answer("report", "logs")
    named = {field: value(report, field) for field in fields("report")}
    assert named["over"]
    assert named["ends[].tail"] == "the first round fails"
    listed = answer("checkpoints", "ckpt")
    said = (value(listed, field) for field in fields("checkpoints"))
    chosen, complete, why_not, in_memory = said
    assert (chosen, complete, in_memory) == (None, False, [])
    assert why_not


def test_the_stages_are_all_named() -> None:
    (row,) = re.findall(r"^\| status \| `job.stage` \| (.*) \|$", page("for-agents"), re.MULTILINE)
    assert re.findall(r"`(\w+)`", row) == [stage.value for stage in stages.Stage]


def test_every_exit_code_of_ours_is_in_the_table() -> None:
    known = codes("options")
    assert {f"{code}" for name, code in vars(model).items() if name.startswith("EXIT_")} <= known
    assert {"0", "2", "75"} <= codes("for-agents") <= known


def codes(name: str) -> set[str]:
    """Return the exit codes that are the first cell of a row."""
    return set(re.findall(r"^\| (\d+) \|", page(name), re.MULTILINE))
