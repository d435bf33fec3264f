"""Findings about a GPU or a host, each of which is reported once."""

import shlex
from dataclasses import replace

import pytest

from hpclaunch.core.health import gpu_rules
from hpclaunch.core.health.findings import Finding, Grade, reason
from hpclaunch.core.health.gpu_rules import (
    GIB,
    GpuReading,
    History,
    NvLink,
    Process,
    Recovery,
    Slowdown,
    judge,
    judge_survey,
)
from hpclaunch.core.health.host_rules import Disk, Host, judge_checkpoints, judge_host
from hpclaunch.core.health.xids import XIDS, Fault, xid
from hpclaunch.observe.console import for_administrator

WELL = GpuReading(
    "GPU 0",
    temperature=60,
    links=(NvLink(up=True, errors=7),) * 4,
    links_of_siblings=4,
    processes=(Process(70, 8 * GIB, "alice", "python", ours=True),),
    used=8 * GIB + GIB // 2,
)
IDLE = replace(WELL, processes=(), used=2 << 20, idle=True)
OURS = Process(70, 2 * GIB, "alice", "python", ours=True)


@pytest.mark.parametrize("reading", [WELL, IDLE, GpuReading("GPU 0")])
def test_a_healthy_gpu(reading):
    assert judge(reading, reading) == []


@pytest.mark.parametrize(
    ("change", "grade", "found"),
    [
        ({"lost": "GPU is lost"}, "FAIL", "does not answer: GPU is lost"),
        ({"uncorrected": 2}, "FAIL", "2 uncorrected memory errors since the driver was loaded"),
        ({"uncorrected": 2, "recovery": Recovery.NONE}, "warn", "errors, which were contained"),
        (
            {"uncorrected": 1, "recovery": Recovery.NONE},
            "warn",
            "1 uncorrected memory error, which was",
        ),
        ({"rows_failed": True}, "FAIL", "bad memory rows could not be remapped"),
        ({"recovery": Recovery.RESET}, "FAIL", "the driver says that it cannot be used before"),
        ({"recovery": Recovery.REBOOT}, "FAIL", "the driver says that it cannot be used before"),
        ({"recovery": Recovery.DRAIN_AND_RESET}, "warn", "the driver asks for a reset soon"),
        ({"rows_pending": True}, "warn", "a row remap is pending"),
        ({"pages_pending": True}, "warn", "a page retirement is pending"),
        ({"slow": (Slowdown.THERMAL,)}, "warn", "runs slower, since it is too hot, 60 C"),
        ({"slow": (Slowdown.POWER_BRAKE,)}, "warn", "the power supply asks for it (power brake)"),
        (
            {"links": (NvLink(up=True, errors=7),) * 3 + (NvLink(up=False),)},
            "FAIL",
            "link 3 went down",
        ),
        ({"links_of_siblings": 18}, "FAIL", "links are down: 4 of 18 are up"),
        ({"links": (NvLink(up=True, errors=8),) * 4}, "warn", "NVLink has repeated 4 transfers"),
    ],
)
def test_a_fault(change, grade, found):
    (finding,) = judge(replace(WELL, **change), WELL)
    assert finding.grade is Grade(grade)
    assert found in finding.found
    assert finding.check.startswith("GPU 0")
    assert finding.advice


@pytest.mark.parametrize(
    ("processes", "used", "idle", "found"),
    [
        ([replace(OURS, user="bob", ours=False)], 2, False, "bob's process 70 (python) holds 2.0"),
        ([replace(OURS, user="bob", ours=False, memory=None)], 0, True, "process 70 (python) is"),
        ([OURS], 2, True, "your own process 70 (python) holds 2.0 GiB of it"),
        ([OURS], 2, False, ""),
        ([replace(OURS, memory=1 << 28)], 1, True, ""),  # a context, and it may be going
        ([replace(OURS, command="nvidia-cuda-mps-server")], 2, True, ""),
        ([replace(OURS, dead=True)], 2, True, "process 70 (python) of the last round still holds"),
        ([Process(7, 2 * GIB)], 2, True, "process 7, which cannot be seen from here, holds 2.0"),
        ([Process(7, 2 * GIB)], 2, False, ""),  # in a container all processes look so
        ([], 5, True, "5.0 GiB are in use by no visible process"),
        ([], 5, False, ""),  # a container hides processes, ours as well
        ([Process(7)], 5, True, ""),  # the driver does not report who holds it
    ],
)
def test_whose_memory_it_is(processes, used, idle, found):
    reading = replace(WELL, processes=tuple(processes), used=used * GIB, idle=idle)
    findings = judge(reading, WELL)
    assert len(findings) == bool(found)
    assert all(f.grade is Grade.WARN and found in f.found for f in findings)


@pytest.mark.parametrize(
    ("change", "checks"),
    [
        # The driver no longer hands out the memory, and says so.
        ({"rows_pending": True}, "ECC warn, pending warn"),
        ({"recovery": Recovery.DRAIN_AND_RESET}, "ECC warn, pending warn"),
        ({"recovery": Recovery.NONE}, "ECC warn"),
        # What it says outweighs that.
        ({"rows_pending": True, "rows_failed": True}, "ECC FAIL, rows FAIL, pending warn"),
        (
            {"rows_pending": True, "recovery": Recovery.RESET},
            "ECC FAIL, recovery FAIL, pending warn",
        ),
        # It says nothing.
        ({}, "ECC FAIL"),
        ({"pages_pending": True}, "ECC FAIL, pending warn"),
    ],
)
def test_whether_a_memory_error_was_contained(change, checks):
    findings = judge(replace(WELL, uncorrected=1, **change))
    assert [f"{f.check.removeprefix('GPU 0 ')} {f.grade.value}" for f in findings] == (
        checks.split(", ")
    )


@pytest.mark.parametrize(("number", "fit"), [(48, True), (63, True), (94, True), (95, False)])
def test_a_round_after_an_xid_of_the_memory(number, fit):
    """94: the page is off-lined. 48 comes before both 94 and 95, and these decide."""
    history = History()
    history.xid("GPU 0", number)
    left = replace(IDLE, uncorrected=1, rows_pending=True)
    assert any(f.grade is Grade.FAIL for f in history.answer([left])) is not fit


def test_links_that_were_never_up_are_none():
    """A board uses fewer than its chip has; another has none at all."""
    half = (NvLink(up=True), NvLink(up=False))
    assert judge(replace(WELL, links=half, links_of_siblings=1), None) == []
    assert judge(replace(WELL, links=(NvLink(up=False),) * 2, links_of_siblings=4), None) == []


def test_what_is_reported_once_and_what_again():
    history = History()
    hot = replace(WELL, slow=(Slowdown.THERMAL,), rows_failed=True)
    assert [f.grade.value for f in history.answer([hot])] == ["FAIL", "warn"]
    assert [f.grade.value for f in history.answer([hot])] == ["FAIL"]  # it speaks against a round
    assert history.news([replace(hot, temperature=90)]) == []
    assert [f.found for f in history.news([replace(hot, lost="GPU is lost")])] == [
        "does not answer: GPU is lost"
    ]
    assert history.news([replace(hot, lost="GPU is lost")]) == []


def test_a_fatal_xid_speaks_against_all_later_rounds():
    history = History()
    (finding,) = history.xid("GPU 1", 79)
    assert (finding.grade, finding.found) == (Grade.FAIL, "Xid 79, GPU has fallen off the bus")
    assert history.xid("GPU 1", 79) == []  # reported already
    assert history.answer([WELL]) == history.answer([WELL]) == [finding]


def test_an_xid_of_the_program_is_no_finding():
    history = History()
    assert [history.xid("GPU 0", n) for n in (13, 31, 43, 45, 69)] == [[]] * 5
    (finding,) = history.xid("GPU 0", 63)
    assert finding.grade is Grade.WARN
    assert history.answer([WELL]) == []


def test_memory_is_waited_for_once():
    history = History()
    left = replace(IDLE, used=5 * GIB)
    assert history.may_be_given_back(left)
    history.answer([left])
    assert not history.may_be_given_back(left)
    assert history.may_be_given_back(replace(left, processes=(replace(OURS, dead=True),)))
    assert not history.may_be_given_back(IDLE)


@pytest.mark.parametrize(
    ("number", "fault", "fatal"),
    [
        (13, Fault.PROGRAM, False), (31, Fault.PROGRAM, False), (45, Fault.PROGRAM, False),
        (48, Fault.GPU, False), (62, Fault.GPU, True), (63, Fault.GPU, False),
        (64, Fault.GPU, True), (74, Fault.LINK, False), (79, Fault.GPU, True),
        (92, Fault.GPU, False), (94, Fault.GPU, False), (95, Fault.GPU, True),
        (109, Fault.UNCLEAR, False), (119, Fault.DRIVER, True), (120, Fault.DRIVER, True),
        (121, Fault.LINK, False), (137, Fault.UNCLEAR, False), (140, Fault.GPU, True),
        (143, Fault.GPU, True), (149, Fault.LINK, False), (154, Fault.UNCLEAR, False),
        (9999, Fault.UNCLEAR, False),
    ],
)  # fmt: skip
def test_xids(number, fault, fatal):
    assert (xid(number).fault, xid(number).fatal) == (fault, fatal)


def test_the_table_of_xids_is_sound():
    for number, row in XIDS.items():
        assert row.number == number
        assert row.name
        assert row.advice
        assert not (row.fatal and row.fault is Fault.PROGRAM)


def test_an_xid_in_words():
    seen = gpu_rules.XidSeen("GPU-1", "GPU 1", 31, (70,))
    assert str(seen).startswith("Xid 31 on GPU 1: GPU memory page fault (an illegal address); an")


ENOUGH = Disk("/data", free=50 * GIB, files=10**6)


@pytest.mark.parametrize(
    ("found", "expected", "grade"),
    [
        (3, None, Grade.FAIL),  # one of several
        (0, None, Grade.WARN),  # a driver that was not asked for
        (2, 2, Grade.WARN),  # another job's
        (1, 2, Grade.FAIL),
        (0, 0, Grade.WARN),
    ],
)
def test_a_gpu_that_is_missing_when_they_are_counted(found, expected, grade):
    (finding,) = judge_survey("GPU 3: GPU is lost", found, expected)
    assert finding.grade is grade


@pytest.mark.parametrize(
    "host",
    [
        Host(1),
        Host(8, ENOUGH, 64 << 20, 4 * GIB, 9.0, 2, True),
        Host(8, replace(ENOUGH, files=None), None, 4 * GIB, 130.0, 64, None),
    ],
)
def test_an_ordinary_host(host):
    assert judge_host(host) == []


@pytest.mark.parametrize(
    ("change", "grade", "found"),
    [
        ({"logs": replace(ENOUGH, free=15 << 20)}, "warn", "/data has 15 MiB left"),
        ({"logs": replace(ENOUGH, files=3)}, "warn", "/data has room for 3 more files"),
        ({"logs": replace(ENOUGH, writable=False)}, "FAIL", "/data: is not writable"),
        ({"logs": replace(ENOUGH, error="Stale file handle")}, "FAIL", "/data: Stale file handle"),
        ({"logs": replace(ENOUGH, free=GIB // 2)}, "warn", "/data has 512 MiB left"),
        ({"shm": 1 << 20}, "warn", "1 MiB left, through which"),
        ({"memory": GIB}, "warn", "1.0 GiB available for 8 workers"),
        ({"load": 300.0, "cpus": 64}, "warn", "300 on 64 CPUs, before the training has begun"),
    ],
)
def test_a_host_that_is_not_well(change, grade, found):
    (finding,) = judge_host(replace(Host(8), **change))
    assert finding.grade is Grade(grade)
    assert found in finding.found
    assert finding.advice


def test_a_clock_is_a_note_only():
    (finding,) = judge_host(Host(8, synchronised=False))
    assert (finding.check, finding.grade) == ("clock", Grade.OK)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({}, []),
        ({"free": 0}, ["/data: 0 MiB left"]),
        ({"files": 0}, ["/data: room for 0 more files"]),
        ({"writable": False}, ["/data: is not writable"]),
    ],
)
def test_the_disk_of_the_checkpoints(change, found):
    findings = judge_checkpoints(replace(ENOUGH, **change))
    assert [f.found for f in findings] == found
    assert all(f.grade is Grade.WARN for f in findings)


def test_the_line_for_the_administrator():
    findings = [
        Finding("GPU 0 Xid 79", "Xid 79, GPU has fallen off the bus", Grade.FAIL),
        Finding("GPU 1", "bob's;\n$(reboot) `halt`", Grade.FAIL),
    ]
    line = for_administrator("n2", reason(findings), "71.0")
    assert "\n" not in line
    assert shlex.split(line) == [
        "scontrol",
        "update",
        "NodeName=n2",
        "Comment=job 71.0: GPU 0 Xid 79: Xid 79, GPU has fallen off the bus; "
        "GPU 1: bob's; $(reboot) `halt`",
    ]
