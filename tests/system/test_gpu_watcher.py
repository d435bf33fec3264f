"""The watcher: a real process with the real pynvml over a stand-in of NVML."""

import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from serving import LIMIT, gone

sys.path.insert(0, str(Path(__file__).parents[1] / "stand_ins"))
import nvml
from nvml import GIB, Driver, Gpu, Instance, Link, Process

from hpclaunch.core.health.findings import Grade
from hpclaunch.core.placement import devices
from hpclaunch.system.gpus.gpu_watcher_client import ANSWER_LIMIT, INIT_LIMIT, GpuWatcherClient
from hpclaunch.worker.processes import ancestry

NEVER = 10**6  # seconds: it looks only when it is asked


class Watching:
    """GPUs, and the process that watches them."""

    def __init__(self, driver, period):
        self.driver, self.period = driver, period
        self.watcher, self.reports = None, []

    def begin(self, *gpus, wanted=(), **state):
        """Start to watch these GPUs; return them, so that a test can break them."""
        self.driver.gpus = list(gpus)
        vars(self.driver).update(state)
        self.driver.apply()
        uuids = wanted or [nvml.uuid(i) for i in range(len(gpus))]
        self.watcher = GpuWatcherClient(
            [devices.Gpu(str(i), uuid, i, mig="MIG" in uuid) for i, uuid in enumerate(uuids)],
            self.period,
        )
        return gpus

    def check(self, number=0, dead=()):
        """Return the findings of a check before a round."""
        self.watcher.check(number, dead)
        report = self.next()
        assert report.round == number
        assert self.watcher.next_deadline() == float("inf")
        return report.findings

    def next(self):
        """Return the next report."""
        limit = time.monotonic() + LIMIT
        while not self.reports:
            assert time.monotonic() < limit, "the watcher says nothing"
            if select.select([self.watcher], [], [], 0.1)[0]:
                self.reports += self.watcher.reports()
        return self.reports.pop(0)

    @property
    def pid(self):
        return self.watcher._process.pid


@pytest.fixture
def period():
    return NEVER


@pytest.fixture
def watching(starts, tmp_path, monkeypatch, period):
    driver = Driver(tmp_path)
    for name, value in driver.environ.items():
        monkeypatch.setenv(name, value)
    watching = Watching(driver, period)
    yield watching
    if watching.watcher is not None:
        watching.watcher.close()


def links(*up):
    return [Link(bool(u)) for u in up]


FAULTS = [
    (Gpu(error=nvml.LOST), "FAIL", "does not answer: GPU is lost"),
    (Gpu(error=nvml.UNKNOWN), "FAIL", "does not answer: Unknown Error"),
    (Gpu(ecc=2, recovery=None), "FAIL", "2 uncorrected memory errors since the driver was loaded"),
    (Gpu(rows=(False, True)), "FAIL", "bad memory rows could not be remapped"),
    (Gpu(recovery=1), "FAIL", "the driver says that it cannot be used before a reset"),
    (Gpu(recovery=4), "warn", "the driver asks for a reset soon"),
    (Gpu(rows=(True, False)), "warn", "a row remap is pending"),
    (Gpu(retired=True), "warn", "a page retirement is pending"),
    (Gpu(throttle=nvml.THERMAL_HW, temperature=93), "warn", "since it is too hot, 93 C"),
    (Gpu(throttle=nvml.THERMAL_SW, temperature=93), "warn", "since it is too hot, 93 C"),
    (Gpu(throttle=nvml.POWER_BRAKE), "warn", "since the power supply asks for it"),
    (Gpu(links=links(1, 0, 1)), "FAIL", "links are down: 2 of 3 are up"),
    (Gpu(used=3 * GIB, processes=[Process(1, 3 * GIB)]), "warn", "process 1 ("),
]  # fmt: skip
QUIET = [
    Gpu(links=links(1, 1, 1), retired=False),
    Gpu(ecc=None, rows=None, recovery=None, links=links(0, 0, 0)),  # it reports nothing
    Gpu(throttle=nvml.POWER_CAP, used=GIB // 2),
    Gpu(error=nvml.HIDDEN),  # a cgroup: then nobody here has it
]


def test_what_speaks_against_a_round(watching):
    """Each problem is on a GPU of its own, beside healthy ones."""
    watching.begin(*QUIET[:3], *(gpu for gpu, _, _ in FAULTS))
    findings = watching.check()
    assert len(findings) == len(FAULTS)
    for number, (_, grade, found) in enumerate(FAULTS, len(QUIET) - 1):
        (finding,) = (f for f in findings if f.check.split()[:2] == ["GPU", str(number)])
        assert (finding.grade.value, found in finding.found) == (grade, True), finding
    again = watching.check(1)
    assert {f.grade for f in again} == {Grade.FAIL}
    assert len(again) == sum(grade == "FAIL" for _, grade, _ in FAULTS)


def test_gpus_that_are_well(watching):
    watching.begin(*QUIET, Gpu(hang=True), wanted=[nvml.uuid(i) for i in range(3)])
    assert watching.check() == ()
    assert watching.check(1) == ()


QUESTIONS = (
    *("RemappedRows", "CurrentClocksThrottleReasons", "RetiredPagesPendingStatus", "Temperature"),
    *("TotalEccErrors", "FieldValues", "NvLinkState", "NvLinkErrorCounter", "MemoryInfo"),
    *("ComputeRunningProcesses", "MPSComputeRunningProcesses", "Name"),
)


@pytest.mark.parametrize("code", [nvml.UNKNOWN, nvml.UNSUPPORTED])
def test_questions_that_a_gpu_does_not_answer(watching, code):
    """Each unanswered question is on a GPU of its own."""
    fails = [{f"nvmlDeviceGet{question}": code} for question in QUESTIONS]
    watching.begin(*(Gpu(links=links(1, 1), fails=f) for f in fails))
    assert watching.check() == ()
    assert watching.check(1) == ()


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_gpu_that_is_lost_at_a_question(watching, question):
    fails = {f"nvmlDeviceGet{question}": nvml.LOST}
    watching.begin(*(Gpu(links=links(1, 1), fails=f) for f in ({}, fails, {})))
    (finding,) = watching.check()
    assert (finding.check, finding.found) == ("GPU 1", "does not answer: GPU is lost")


@pytest.mark.parametrize(
    ("link", "code"), [(2, nvml.UNKNOWN), (3, nvml.UNKNOWN), (2, nvml.UNSUPPORTED)]
)
def test_a_link_that_is_not_reported_once(watching, link, code):
    """Such a link neither is down nor has new errors."""
    first, second = watching.begin(*(Gpu(links=[Link(replays=3) for _ in range(4)]) for _ in "ab"))
    first.links[1].error = code
    watching.driver.apply()
    assert watching.check() == ()
    first.links[1].error, second.links[link].error = 0, code
    watching.driver.apply()
    assert watching.check(1) == ()


def test_links_between_two_checks(watching):
    (gpu,) = watching.begin(Gpu(links=[Link(), Link(replays=5)]))
    assert watching.check() == ()
    gpu.links = [Link(recoveries=2), Link(up=False, replays=5)]
    watching.driver.apply()
    broken, errors = watching.check(1)
    assert (broken.grade, broken.found) == (Grade.FAIL, "link 1 went down: 1 of 2 are up")
    assert (errors.grade, errors.check) == (Grade.WARN, "GPU 0 NVLink errors")


def test_an_xid_of_a_broken_gpu(watching):
    watching.begin(Gpu(), Gpu())
    assert watching.check() == ()
    watching.driver.xid(1, 79)
    report = watching.next()
    (finding,) = report.findings
    assert (finding.check, finding.grade, report.round) == ("GPU 1 Xid 79", Grade.FAIL, None)
    assert [(x.number, x.uuid) for x in report.xids] == [(79, nvml.uuid(1))]
    assert watching.check(1) == (finding,)  # whatever NVML says of it now


def test_an_error_that_was_contained(watching):
    """The process is dead, the page is off-lined, and the GPU is fit for the next round."""
    (gpu,) = watching.begin(Gpu(recovery=None))
    assert watching.check() == ()
    gpu.ecc, gpu.rows = 1, (True, False)
    watching.driver.apply()
    for number in (48, 63, 94):
        watching.driver.xid(0, number)
    findings = [finding for _ in range(3) for finding in watching.next().findings]
    assert [f.check for f in findings] == ["GPU 0 Xid 48", "GPU 0 Xid 63", "GPU 0 Xid 94"]
    findings += watching.check(1)
    assert {f.grade for f in findings} == {Grade.WARN}
    assert watching.check(2) == ()  # it was reported before


def test_an_xid_of_a_program(watching):
    """The report names the processes that may have caused it, and their ancestors; the node stays
    fit.
    """
    (gpu,) = watching.begin(Gpu())
    assert watching.check() == ()
    gpu.processes = [Process(os.getpid(), GIB)]
    watching.driver.apply()
    watching.driver.xid(0, 31)
    report = watching.next()
    assert report.findings == ()
    (seen,) = report.xids
    assert (seen.name, seen.number, seen.pids) == ("GPU 0", 31, tuple(ancestry(os.getpid())))
    gpu.processes = []
    watching.driver.apply()
    assert watching.check(1) == ()


def test_clients_of_mps(watching):
    """NVML lists clients separately; the server is in the other list or in both."""
    (gpu,) = watching.begin(Gpu())
    assert watching.check() == ()
    client, server = Process(os.getpid(), 3 * GIB, mps=True), Process(4_000_001, GIB)
    gpu.used, gpu.processes = 4 * GIB, [server, client, replace(server, mps=True)]
    watching.driver.apply()
    watching.driver.xid(0, 31)
    (seen,) = watching.next().xids
    assert seen.pids == tuple(ancestry(os.getpid()))
    assert not any("no process owns" in finding.found for finding in watching.check(1))


def test_xids_of_before_and_of_gpus_of_others(watching):
    watching.begin(Gpu(), Gpu(), wanted=[nvml.uuid(0)], xids=[(0, 79)])
    assert watching.check() == ()
    watching.driver.xid(1, 79)
    watching.driver.xid(0, 63)
    assert [x.number for x in watching.next().xids] == [63]


def test_an_instance_of_mig(watching):
    """An instance has its own processes and memory; the other values are the GPU's."""
    first, second = Instance("MIG-a", 1, 0), Instance("MIG-b", 2, 0)
    (gpu,) = watching.begin(
        Gpu(mig=True, instances=[first, second], capability=(8, 0)), wanted=["MIG-b"]
    )
    gpu.processes = [Process(1, 3 * GIB, instance=0)]
    watching.driver.apply()
    assert watching.check() == ()
    gpu.processes = [Process(1, 3 * GIB, instance=1)]
    watching.driver.apply()
    (finding,) = watching.check(1)
    assert "process 1 (" in finding.found
    watching.driver.xid(0, 95)
    (finding,) = watching.next().findings
    assert finding.check == "MIG MIG-b Xid 95"


def test_memory_of_dead_workers_is_waited_for(watching):
    (gpu,) = watching.begin(Gpu())
    assert watching.check() == ()
    gpu.used, gpu.processes = 3 * GIB, [Process(4_000_000, 3 * GIB)]
    watching.driver.apply()
    watching.watcher.check(1, dead=[4_000_000])
    assert not select.select([watching.watcher], [], [], 0.2)[0]
    gpu.processes = []  # the process is gone first
    watching.driver.apply()
    assert not select.select([watching.watcher], [], [], 0.2)[0]
    gpu.used = 0
    watching.driver.apply()
    assert watching.next().findings == ()


class TestWhileItRuns:
    @pytest.fixture
    def period(self):
        return 0.05

    def test_only_what_is_new_is_reported(self, watching):
        (gpu,) = watching.begin(Gpu())
        assert watching.check() == ()
        gpu.throttle = nvml.THERMAL_HW
        watching.driver.apply()
        assert [f.check for f in watching.next().findings] == ["GPU 0 slowdown THERMAL"]
        gpu.temperature = 99
        watching.driver.apply()
        gpu.rows = (True, False)
        watching.driver.apply()
        assert [f.check for f in watching.next().findings] == ["GPU 0 pending"]
        gpu.error = nvml.LOST
        watching.driver.apply()
        report = watching.next()
        assert [(f.check, f.grade) for f in report.findings] == [("GPU 0", Grade.FAIL)]
        assert [f.check for f in watching.check(1)] == ["GPU 0"]


@pytest.mark.parametrize("where", ["a call", "the start"])
def test_nvml_hangs(watching, where):
    gpus = watching.begin(Gpu(), hang=where == "the start")
    if where == "a call":
        assert watching.check() == ()
        gpus[0].hang = True
        watching.driver.apply()
    limit = INIT_LIMIT if where == "the start" else ANSWER_LIMIT
    before = time.monotonic()
    watching.watcher.check(7)
    assert before + limit <= watching.watcher.next_deadline() <= time.monotonic() + limit
    report = watching.watcher.expire()  # when that time has come
    (finding,) = report.findings
    assert (report.round, finding.grade, finding.check) == (7, Grade.FAIL, "NVML")
    assert finding.found == f"does not answer within {limit:.0f} s"
    assert watching.watcher.lost
    assert watching.watcher.next_deadline() == float("inf")
    watching.watcher.close()
    assert gone(watching.pid)


def test_the_next_watcher_may_do_better(watching):
    (gpu,) = watching.begin(Gpu(hang=True))
    watching.watcher.check(0)
    watching.watcher.expire()
    watching.watcher.close()
    gpu.hang = False
    watching.driver.apply()
    watching.watcher = watching.watcher.successor()
    watching.watcher.check(1)
    assert watching.watcher.next_deadline() > time.monotonic() + ANSWER_LIMIT  # it starts NVML too
    assert watching.next().findings == ()


def test_a_driver_that_cannot_be_used(watching):
    watching.begin(Gpu(), init=18)
    (finding,) = watching.check()
    assert finding.grade is Grade.FAIL
    assert finding.found.startswith("cannot be initialised: RM has detected")
    watching.driver.init = 0
    watching.driver.apply()
    assert watching.check(1) == ()


def test_a_watcher_that_dies_answers(watching):
    watching.begin(Gpu())
    assert watching.check() == ()
    os.kill(watching.pid, signal.SIGSTOP)
    watching.watcher.check(1)
    os.kill(watching.pid, signal.SIGKILL)
    report = watching.next()
    assert (report.round, report.findings[0].grade) == (1, Grade.WARN)
    assert watching.watcher.lost


def test_signals_for_the_agent_leave_it_alone(watching):
    watching.begin(Gpu())
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        os.kill(watching.pid, signum)
    assert watching.check() == ()


@pytest.mark.parametrize("hang", [False, True])
def test_it_dies_with_the_agent(watching, hang):
    watching.driver.gpus = [Gpu(hang=hang)]
    watching.driver.apply()
    program = (
        "import sys, time; from hpclaunch.core.placement.devices import Gpu\n"
        "from hpclaunch.system.gpus.gpu_watcher_client import GpuWatcherClient\n"
        "watcher = GpuWatcherClient([Gpu('0', sys.argv[1])])\n"
        "print(watcher._process.pid, flush=True); time.sleep(600)"
    )
    agent = subprocess.Popen(
        [sys.executable, "-c", program, nvml.uuid(0)], stdout=subprocess.PIPE, text=True
    )
    pid = int(agent.stdout.readline())
    agent.kill()
    agent.wait()
    agent.stdout.close()
    assert gone(pid)


def test_it_is_light(watching):
    """The watcher imports neither torch nor anything else that it does not need."""
    watching.begin(Gpu())
    assert watching.check() == ()
    loaded = {Path(m.path).name for m in psutil.Process(watching.pid).memory_maps()}
    assert not {name for name in loaded if name.startswith(("libtorch", "libzmq", "_psutil"))}


def test_how_gpus_are_used(watching):
    """Two requests before the first answer get one answer, since NVML may hang."""
    watching.begin(Gpu(total=80 * GIB), Gpu(total=40 * GIB))
    assert watching.check() == ()
    watching.watcher.ask_use()
    watching.watcher.ask_use()
    report = watching.next()
    assert report.round is None
    first, second = report.use
    assert (first.total, second.total) == (80 * GIB, 40 * GIB)
    assert 0 <= first.used <= first.total
    assert first.busy is None  # this driver does not report it
    assert watching.check(1) == ()


def test_a_watcher_that_dies_is_not_waited_for(watching):
    watching.begin(Gpu())
    assert watching.check() == ()
    os.kill(watching.pid, signal.SIGSTOP)
    watching.watcher.ask_use()
    os.kill(watching.pid, signal.SIGKILL)
    while not watching.watcher.lost:
        assert list(watching.watcher.reports()) == []
    assert watching.watcher.next_deadline() == float("inf")


def test_nvml_that_hangs_when_the_use_is_asked_is_a_warning_until_the_next_check(watching):
    (gpu,) = watching.begin(Gpu())
    assert watching.check() == ()
    gpu.hang = True
    watching.driver.apply()
    watching.watcher.ask_use()
    deadline = watching.watcher.next_deadline()
    assert deadline <= time.monotonic() + ANSWER_LIMIT
    watching.watcher.ask_use()
    assert watching.watcher.next_deadline() == deadline
    report = watching.watcher.expire()
    assert (report.use, report.round) == ((), None)
    assert [(f.check, f.grade) for f in report.findings] == [("NVML", Grade.WARN)]
    assert not watching.watcher.lost
    assert watching.watcher.next_deadline() == float("inf")
    watching.watcher.check(1)
    report = watching.watcher.expire()
    assert (report.round, report.findings[0].grade) == (1, Grade.FAIL)
