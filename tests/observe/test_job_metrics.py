"""The metrics of a launch."""

from __future__ import annotations

import re

import pytest
from test_screens import LAUNCHES, SAVED, a_job, a_launch, an_agent

from hpclaunch.core.protocol.facts import Category
from hpclaunch.core.protocol.gpu_use import GpuUse
from hpclaunch.core.protocol.job_snapshot import AgentState, NodeGpu
from hpclaunch.core.protocol.metrics import MetricKind
from hpclaunch.core.protocol.values import replace
from hpclaunch.observe.job_metrics import job_metrics
from hpclaunch.observe.job_report import report
from hpclaunch.observe.job_screen import job_screen
from hpclaunch.observe.launches import Launch
from hpclaunch.observe.ledger_entries import LedgerEntry
from hpclaunch.observe.text_style import TextStyle

UNITS = ("_seconds", "_bytes", "_ratio", "_celsius", "_watts")
GPU = NodeGpu(3, "GPU-5fd4f087", GpuUse(0.5, 40 << 30, 80 << 30, 61, 512.0))
SPENT = {Category.TRAINING: 75.0, Category.RESTART: 25.0}
REPORT = report([Launch("71.0", (LedgerEntry(10.0, 60.0, 2.0, SPENT),))])


def values_of(launch):
    """{(name, labels but for those of the launch and the agent): value}"""
    found = job_metrics(launch, REPORT, {"hang": 2}, "1.2.3")
    common = ("hpc_job", "launch", "agent")
    values = {}
    for family in found:
        for sample in family.samples:
            labels = {k: v for k, v in sample.labels.items() if k not in common}
            key = (family.name.removeprefix("hpclaunch_"), *sorted(labels.values()))
            assert key not in values
            values[key] = sample.value
    return values


@pytest.mark.parametrize("launch", LAUNCHES.values(), ids=LAUNCHES)
def test_names_and_units_are_by_the_conventions(launch):
    families = job_metrics(replace(launch, gpus=(GPU,)), REPORT, {}, "1.2.3")
    names = [family.name for family in families]
    assert len(set(names)) == len(names)
    for family in families:
        assert re.fullmatch(r"hpclaunch(_[a-z]+)*", family.name)
        assert not family.name.endswith(("_total", "_info"))  # these are added
        assert not family.unit or family.name.endswith(f"_{family.unit}")
        assert bool(family.unit) == family.name.endswith(UNITS)
        assert family.help.endswith(".")
        assert family.samples
        labels = {frozenset(sample.labels) for sample in family.samples}
        assert len(labels) == 1, "all samples of a metric have the same labels"
        assert len({tuple(s.labels.items()) for s in family.samples}) == len(family.samples)


def test_an_agent_that_does_not_lead_reports_its_node_alone():
    launch = replace(a_launch(None), gpus=(GPU,))
    values = values_of(launch)
    assert values["leads",] == 0
    assert values["gpu_busy_ratio", "3", "GPU-5fd4f087", "n1"] == 0.5
    assert {name for name, *_ in values if not name.startswith("gpu_")} == {
        "leads",
        "snapshot_timestamp_seconds",
    }


def test_what_a_gpu_does_not_report_is_left_out():
    unknown = replace(a_launch(None), gpus=(NodeGpu(0, "GPU-1", GpuUse(None, 0, 0, 0, 0.0)),))
    assert not [name for name, *_ in values_of(unknown) if name.startswith("gpu_")]
    unused = replace(a_launch(None), gpus=(NodeGpu(0, "GPU-1", GpuUse(0.0, 0, 8, 20, 9.0)),))
    assert values_of(unused)["gpu_memory_used_bytes", "0", "GPU-1", "n1"] == 0
    rank = replace(an_agent(0, 1, gpus=True), gpus=(unknown.gpus[0].use,))
    screen = job_screen(a_launch(a_job(rank)), TextStyle())
    assert not [line for line in screen if "0C" in line]


def test_no_two_agents_of_a_node_have_the_same_series():
    """Agents may see the same GPUs, and their files may be in one directory."""
    head = replace(LAUNCHES["two-ranks"], gpus=(GPU,))
    other = replace(head, agent=1, job=None)
    series = [
        {
            (family.name, *sorted(sample.labels.items()))
            for family in job_metrics(launch, None, {}, "1.2.3")
            for sample in family.samples
        }
        for launch in (head, other)
    ]
    assert len(series[1]) == 7
    assert not set.intersection(*series)


def test_a_running_job():
    launch = LAUNCHES["two-ranks"]
    values = values_of(launch)
    assert values["leads",] == 1
    assert values["hpclaunch", "1.2.3", "n1"] == 1
    assert values["stage", "running"] == 1
    assert values["stage", "stopping"] == 0
    assert (values["round",], values["world_size",], values["round_steps",]) == (1, 2, 1204)
    assert values["nodes", "running"] == 2
    assert values["nodes", "lost"] == 0
    assert values["step_duration_seconds",] == 0.43
    assert values["checkpoint_step",] == 1200
    assert values["checkpoint_timestamp_seconds",] == pytest.approx(1.7e9 - 131)
    assert values["end_timestamp_seconds",] == pytest.approx(1.7e9 + 11400)
    assert values["round_ends", "hang"] == 2
    assert values["round_ends", "node lost"] == 0
    assert values["seat_seconds", "training"] == 75
    assert values["seat_seconds", "saving"] == 0
    assert values["goodput_ratio",] == 0.75


def test_what_is_not_known_is_left_out():
    values = values_of(LAUNCHES["first-steps"])
    missing = ("step", "checkpoint_step", "end_timestamp_seconds", "exit_code")
    assert not [name for name in missing if (name,) in values]
    assert values["over",] == 0


def test_a_job_in_trouble():
    values = values_of(LAUNCHES["spare"])
    assert values["nodes", "spare"] == values["nodes", "lost"] == 1
    assert values["restarts",] == 1
    assert values["straggler_named",] == 1
    values = values_of(LAUNCHES["still"])
    assert values["last_progress_timestamp_seconds",] == pytest.approx(1.7e9 - 8.1)
    assert values["hang_timeout_seconds",] == 10
    values = values_of(LAUNCHES["ending"])
    assert (values["over",], values["exit_code",]) == (1, 143)


def test_ranks_that_have_ended_do_not_hide_that_the_others_do_nothing():
    ended = an_agent(1, state=AgentState.DONE, still=0.0, hang=5.0)
    launch = a_launch(a_job(an_agent(0, still=500.0, hang=600.0), ended))
    values = values_of(launch)
    assert values["last_progress_timestamp_seconds",] == pytest.approx(1.7e9 - 500)
    assert values["hang_timeout_seconds",] == 600
    warning = "no worker has done anything for 8 m 20 s; after 10 m 00 s that is a hang"
    assert f"  {warning}" in job_screen(launch, TextStyle(80))
    assert values_of(a_launch(a_job(ended)))["last_progress_timestamp_seconds",] == 1.7e9


@pytest.mark.parametrize("given", [False, True])
def test_whether_notice_is_given(given):
    launch = a_launch(a_job(an_agent(0), is_notice_given=given))
    assert values_of(launch)["notice_given",] == given


def test_the_number_of_values_does_not_grow_with_the_job():
    few, many = (values_of(LAUNCHES[name]) for name in ("two-ranks", "1024-ranks"))
    assert len(many) <= len(few)


def test_several_agents_of_one_node_are_one():
    agents = [an_agent(i, node=0) for i in range(4)]
    values = values_of(a_launch(a_job(*agents, checkpoint=SAVED)))
    assert values["nodes", "running"] == 1


def test_counters_and_the_rest():
    kinds = {f.name: f.kind for f in job_metrics(LAUNCHES["spare"], REPORT, {}, "1.2.3")}
    counters = {name for name, kind in kinds.items() if kind is MetricKind.COUNTER}
    assert counters == {"hpclaunch_restarts", "hpclaunch_round_ends"}
    assert [name for name, kind in kinds.items() if kind is MetricKind.INFO] == ["hpclaunch"]
