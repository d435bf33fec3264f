"""Questions to Slurm about the end of the job, with a stand-in for `scontrol` that may be slow."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from polling import receive

from hpclaunch.agent.end_watch import EndWatch
from hpclaunch.agent.errands import Errands
from hpclaunch.core.protocol.model import Job, Place

pytestmark = pytest.mark.starts

SCONTROL = """#!/bin/sh
echo begun >> '{0}/begun'
while [ ! -e '{0}/go' ]; do sleep 0.01; done
case $2 in
job) echo "JobId=7 UserId=me(1) StartTime=1600000000 EndTime=4000000000" ;;
node) echo "NodeName=n1 State=IDLE+DRAIN" ;;
esac
"""


@pytest.fixture
def errands():
    errands = Errands(lambda _: True)
    yield errands
    errands.close()


@pytest.fixture
def watch(tmp_path, monkeypatch, errands):
    (tmp_path / "scontrol").write_text(SCONTROL.format(tmp_path))
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    job = Job((Place(0, 0, "n0"), Place(1, 1, "n1")), most=1, slurm_id="7")
    config, environ = SimpleNamespace(job=job), {"SLURM_STEP_NODELIST": "n[0-1]"}
    yield EndWatch(SimpleNamespace(config=config, environ=environ, errands=errands))
    (tmp_path / "go").touch()  # otherwise a waiting `scontrol` would never end


def test_a_late_answer_to_an_earlier_question_is_used(watch, errands, tmp_path):
    """All answers are late if each takes longer than the time between questions."""
    watch.ask(1)
    while not (tmp_path / "begun").exists():
        pass
    for number in (2, 3, 4):
        watch.ask(number)
    (tmp_path / "go").touch()
    (first,) = receive(errands)
    assert first.number == 1
    assert first.left > 0
    assert watch.began == 1600000000
    (second,) = receive(errands)
    assert second.number == 4
    assert (tmp_path / "begun").read_text().split() == ["begun"] * 4  # two of each question


def test_a_question_without_an_answer_leaves_drained_nodes_drained(watch, errands, tmp_path):
    (tmp_path / "go").touch()
    watch.ask(1)
    (first,) = receive(errands)
    (tmp_path / "go").unlink()
    watch.ask(2)
    (second,) = errands.update(errands.deadline())
    assert (second.left, second.number) == (None, 2)
    assert second.draining == first.draining == ("n1",)
