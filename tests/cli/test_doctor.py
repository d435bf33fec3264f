"""The doctor on one host: alone, and as the tasks of a step."""

import errno
import importlib.util
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launching import HPCLAUNCH, LIMIT, hpclaunch

from hpclaunch.cli import doctor_host, doctor_reports
from hpclaunch.core.health.findings import Grade
from hpclaunch.core.health.task_reports import TaskReport
from hpclaunch.core.protocol.model import Allocation, Place
from hpclaunch.system.network import reachability
from lines import only
from surroundings import environment

sys.path.insert(0, str(Path(__file__).parents[1] / "stand_ins"))
from nvml import LOST, SOURCE, Driver, Gpu, Instance

pytestmark = pytest.mark.starts

# It is looked for, but not imported here.
TORCH = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
WITHOUT_ROOTS_RIGHTS = (
    ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
)


def interpreter(path, **said):
    """One of the workers, whose torch answers at once."""
    torch = {"python": "3.12", "version": "2.13.0", "cuda": "", "gpus": 0, "nccl": ""}
    path.write_text(f"#!/bin/sh\necho '{json.dumps(torch | {'distributed': True} | said)}'\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def env(tmp_path_factory):
    """Return the environment of a user whose home is the test's own."""
    home = tmp_path_factory.mktemp("home")
    python = interpreter(home / "python")
    return environment(HOME=home, XDG_STATE_HOME=home / "state", PYTHON_EXEC=python)


@pytest.fixture
def with_gpus(tmp_path_factory, env):
    """(driver, environment) of a host with these GPUs, which torch can use."""

    def make(*gpus, usable=None, **driver):
        directory = tmp_path_factory.mktemp("gpus")
        usable = len(gpus) if usable is None else usable
        python = interpreter(directory / "python", cuda="12.4", gpus=usable, nccl="2.28.9")
        there = Driver(directory, [*gpus], **driver)
        names = ("LD_LIBRARY_PATH", "HPCLAUNCH_STAND_IN_NVML")
        stand_in = {name: there.environ[name] for name in names}
        return there, env | stand_in | {"PYTHON_EXEC": str(python)}

    return make


def doctor(cwd, env, *args, **more):
    return hpclaunch("doctor", *args, cwd=cwd, env=env, **more)


def words(text):
    """Return the text without the line breaks in a cell."""
    return " ".join(text.split())


@TORCH
def test_a_healthy_host(tmp_path, env):
    del env["PYTHON_EXEC"]
    done = doctor(tmp_path, env)
    assert done.returncode == 0, done.stdout
    assert done.stderr == ""
    first, *table, last = done.stdout.splitlines()
    assert first == f"hpclaunch doctor on {socket.gethostname()}"
    assert "none: this machine alone" in table[0]
    assert "FAIL" not in done.stdout
    assert last.endswith(("in the way of a training", "can run, and may suffer"))
    for check in ("hpclaunch", "route", "port", "CPUs", "memory", "limits", "torch", "GPUs"):
        assert any(line.split()[1:2] == [check] for line in table), check
    assert all(len(line) <= 100 and line == line.rstrip() for line in table)
    assert "\x1b" not in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "args", "says"),
    [
        ({"PYTHON_EXEC": "/no/such/python"}, (), "PYTHON_EXEC=/no/such/python: No such file"),
        ({"PYTHON_EXEC": "/bin/false"}, (), "/bin/false: exit code 1"),
        ({"GLOO_SOCKET_IFNAME": "nope0"}, (), "-> unset GLOO_SOCKET_IFNAME in the job script"),
        (
            {},
            ("--log-dir", "file/logs"),
            "Not a directory -> start the job in a directory that you can write",
        ),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2"}, (), "prefix with srun"),
        ({"SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "n[1"}, (), "host list 'n[1'"),
    ],
)
def test_what_would_break_a_training(tmp_path, env, changes, args, says):
    (tmp_path / "file").touch()
    done = doctor(tmp_path, env | changes, *args)
    assert done.returncode == 1, done.stdout
    assert "FAIL" in done.stdout
    assert says in words(done.stdout)
    assert "FAIL: a training would break here" in done.stdout.splitlines()[-1]
    assert done.stderr == ""


@pytest.mark.parametrize("args", [(), ("--measure",)])
def test_its_advice_names_no_option_that_only_a_launch_has(tmp_path, env, args):
    several = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2"}
    done = doctor(tmp_path, env | several, *args)
    advice = "prefix with srun (or, to train on this node alone, use hpclaunch --standalone)"
    assert advice in words(done.stdout + done.stderr)
    assert "no option --standalone" in doctor(tmp_path, env, "--standalone").stderr


def test_a_directory_that_may_not_be_written(tmp_path, env):
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    done = doctor(tmp_path, env, "--log-dir", "closed/logs", before=WITHOUT_ROOTS_RIGHTS)
    assert done.returncode == 1, done.stdout
    assert "Permission denied -> start the job in a directory" in words(done.stdout)


def test_a_user_without_a_home(tmp_path, env):
    """Alone nobody needs the secret."""
    done = doctor(tmp_path, env | {"HOME": "nowhere", "XDG_STATE_HOME": ""})
    assert done.returncode == 0, done.stdout
    assert "has no home directory here: set HOME, or HPCLAUNCH_SECRET_FILE" in words(done.stdout)


def test_a_secret_that_others_can_read_is_reported_before_it_is_needed(tmp_path, env):
    (tmp_path / "secret").write_bytes(b"s" * 32)
    (tmp_path / "secret").chmod(0o644)
    done = doctor(tmp_path, env | {"HPCLAUNCH_SECRET_FILE": str(tmp_path / "secret")})
    assert done.returncode == 0, done.stdout
    assert "warn" in done.stdout
    assert "is open to others (mode 0644)" in words(done.stdout)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--nope",), "no option --nope (see hpclaunch doctor --help)"),
        (("--timout=3",), "no option --timout: did you mean --timeout? (see hpclaunch doctor"),
        (("--timeout", "soon"), "argument --timeout: 'soon' is not a number of seconds"),
        (("--measure", "--log-dir=logs"), "--log-dir has no effect with --measure"),
        (("train.py",), "unrecognized arguments: train.py (see hpclaunch doctor --help)"),
    ],
)
def test_a_mistake(in_process, tmp_path, env, args, says):
    done = in_process("doctor", *args, cwd=tmp_path, env=env)
    assert done.returncode == 2
    line = only(done.stderr)
    assert line.startswith(f"hpclaunch: error: {says}")


def test_help_says_what_it_does(in_process, tmp_path, env):
    done = in_process("doctor", "--help", cwd=tmp_path, env=env)
    assert done.returncode == 0
    assert "srun hpclaunch doctor" in done.stdout


@pytest.mark.parametrize("closed", [True, False])
def test_nowhere_to_write(tmp_path, env, closed):
    redirection = ">&-" if closed else ">/dev/full"
    command = ["sh", "-c", f"exec {HPCLAUNCH} doctor {redirection}"]
    done = subprocess.run(
        command, cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True, timeout=LIMIT
    )
    assert done.returncode == 2
    line = only(done.stderr)
    assert line.startswith("hpclaunch: error: ")


def test_colours_on_a_terminal(tmp_path, env):
    ours, theirs = pty.openpty()
    command = [HPCLAUNCH, "doctor"]
    with subprocess.Popen(command, cwd=tmp_path, env=env | {"TERM": "xterm"}, stdout=theirs):
        os.close(theirs)
        said = b""
        try:
            while chunk := os.read(ours, 4096):
                said += chunk
        except OSError:  # the other end is closed
            pass
    os.close(ours)
    assert b"\x1b[32mok" in said


def step(cwd, env, *, tasks, timeout=30, **changes):
    """Run all tasks of a step on this host; returns (output, exit code) of each."""
    started = start_step(cwd, env, tasks=tasks, timeout=timeout, **changes)
    return [(p.communicate(timeout=2 * LIMIT)[0], p.returncode) for p in started]


def start_step(cwd, env, *, tasks, timeout=30, **changes):
    slurm = {
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_STEP_TASKS_PER_NODE": str(tasks),
        "SLURM_NODEID": "0",
    }
    command = [HPCLAUNCH, "doctor", "--timeout", str(timeout)]
    started = []
    for task in range(tasks):
        own = {"SLURM_LOCALID": str(task), "SLURM_PROCID": str(task), **changes.get(f"t{task}", {})}
        started.append(
            subprocess.Popen(
                command,
                cwd=cwd,
                env=env | slurm | own,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    return started


def test_the_memory_has_to_be_enough_for_the_workers_of_all_tasks(tmp_path, env, monkeypatch):
    asked = []
    monkeypatch.setattr(doctor_host.checks, "memory", lambda workers, _: asked.append(workers))
    where = Allocation("71.0", "71", tuple(Place(task, 0, "localhost") for task in range(8)), 0)
    doctor_host.examine(doctor_host.Surroundings(env, where, ()), tmp_path, 1.0)
    assert asked == [8]


def test_the_tasks_of_a_step_connect_and_one_speaks(tmp_path, env):
    began = time.monotonic()
    (said, code), *others = step(tmp_path, env | {"SLURM_GPUS_ON_NODE": "1"}, tasks=3)
    lasted = time.monotonic() - began
    assert code == 0, said
    assert "all 3 tasks connected to localhost, port " in words(said)
    assert f"step {os.getpid()}.0, 1 host, 3 tasks, 1 GPU per host" in words(said)
    (apart,) = re.findall(r"(\d+(?:\.\d+)?) s", row(said, "clocks"))
    assert float(apart) <= lasted, "it is the same clock, and a report takes no longer than all"
    assert others == [("", 0), ("", 0)]


def test_the_first_host_may_take_longest(tmp_path, env):
    slow = tmp_path / "python"
    slow.write_text(
        f"#!/bin/sh\nuntil [ -e over ]; do sleep 0.1; done; exec '{env['PYTHON_EXEC']}'"
    )
    slow.chmod(0o755)
    first, other = start_step(tmp_path, env, tasks=2, t0={"PYTHON_EXEC": str(slow)})
    said, _ = other.communicate(timeout=2 * LIMIT)
    (tmp_path / "over").touch()
    assert (said, other.returncode) == ("", 0)
    said, _ = first.communicate(timeout=2 * LIMIT)
    assert first.returncode == 0, said
    assert "all 2 tasks connected to localhost, port " in words(said)


def test_what_one_task_finds_is_the_first_ones_exit_code(tmp_path, env):
    wrong = {"t2": {"GLOO_SOCKET_IFNAME": "nope0"}}
    (said, code), *others = step(tmp_path, env, tasks=3, **wrong)
    assert code == 1, said
    assert "GLOO_SOCKET_IFNAME=nope0 names none of this host" in words(said)
    assert "all 3 tasks connected" in said
    assert others == [("", 0), ("", 0)]


def test_a_task_with_another_secret_is_reported_by_both_sides(tmp_path, env):
    wrong = {"t1": {"HPCLAUNCH_SECRET_FILE": str(tmp_path / "other")}}
    (head, code), (member, other) = step(tmp_path, env, tasks=2, timeout=1, **wrong)
    assert (code, other) == (1, 1)
    assert "no connection from localhost" in words(head)
    assert "another secret file or --rdzv-id, from which the ports derive" in words(member)
    assert "Traceback" not in head + member


@pytest.mark.parametrize(
    ("answer", "advice"),
    [
        (reachability.Answer.SILENT, "see whether 192.0.2.7 is up; all nodes of a job must reach"),
        (reachability.Answer.REFUSED, "compare the secret's fingerprint"),
    ],
)
def test_what_to_do_about_a_head_that_is_not_reached(monkeypatch, answer, advice):
    monkeypatch.setattr(reachability, "probe", lambda *_: {("192.0.2.7", 1): answer})
    places = (Place(0, 0, "192.0.2.7"), Place(1, 1, "n2"))
    where = Allocation("71.0", f"{os.getpid()} unreached", places, 1)
    found = doctor_reports.send(where, b"s" * 32, TaskReport("n2", ()), 0.1)
    assert found.advice.startswith(advice)


@TORCH
def test_this_host_is_measured(tmp_path, env):
    del env["PYTHON_EXEC"]
    (tmp_path / "temporary").mkdir()
    done = doctor(tmp_path, env | {"TMPDIR": str(tmp_path / "temporary")}, "--measure")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert row(done.stdout, "compute").startswith("1 x ")
    assert "TFLOP/s" in row(done.stdout, "compute")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["temporary"]


def test_workers_that_cannot_measure_are_named(tmp_path, env):
    (tmp_path / "python").write_text("#!/bin/sh\necho no torch here >&2; exit 7\n")
    (tmp_path / "python").chmod(0o755)
    more = {"PYTHON_EXEC": str(tmp_path / "python"), "TMPDIR": str(tmp_path)}
    done = doctor(tmp_path, env | more, "--measure")
    assert done.returncode == 1
    assert done.stdout == ""
    assert f"on {socket.gethostname()} exited with code" in done.stderr
    assert "    | no torch here" in done.stderr
    (logs,) = tmp_path.glob("hpclaunch-doctor-*/logs")
    assert f"logs: {logs}" in done.stderr


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_measurements_that_the_user_stops_leave_nothing(tmp_path, env, signum):
    (tmp_path / "python").write_text(f"#!/bin/sh\ntouch '{tmp_path}/started'\nexec sleep {LIMIT}\n")
    (tmp_path / "python").chmod(0o755)
    (tmp_path / "temporary").mkdir()
    more = {"PYTHON_EXEC": str(tmp_path / "python"), "TMPDIR": str(tmp_path / "temporary")}
    with subprocess.Popen([HPCLAUNCH, "doctor", "--measure"], cwd=tmp_path, env=env | more) as done:
        deadline = time.monotonic() + LIMIT
        while not (tmp_path / "started").exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        done.send_signal(signum)
        assert done.wait(LIMIT) == 128 + signum
    assert list((tmp_path / "temporary").iterdir()) == []


# GPUs


HERE = tuple(sorted(os.sched_getaffinity(0)))
PROHIBITED, EXCLUSIVE = 2, 3  # NVML_COMPUTEMODE_*
ELSEWHERE = (1022, 1023)  # CPUs that no machine has


def row(said, check):
    """Return the words of one row, "" where there is none."""
    rows = re.split(r"(?m)^(?:ok|warn|FAIL) +", said)[1:]
    return next((words(r.removeprefix(check)) for r in rows if r.startswith(f"{check} ")), "")


def test_the_cpus_of_each_gpus_worker(tmp_path, with_gpus):
    _, env = with_gpus(Gpu(cpus=HERE), Gpu(cpus=HERE))
    done = doctor(tmp_path, env)
    assert done.returncode == 0, done.stdout
    assert row(done.stdout, "GPUs") == "2 x NVIDIA H100 80GB HBM3, driver 550.54.15"
    first, second, *_ = row(done.stdout, "binding").split("; ")
    assert first.startswith(f"GPU 0, CPUs {HERE[0]}")
    assert second.startswith("GPU 1, CPUs ")


def test_several_tasks_on_a_host_report_the_cpus_of_each(tmp_path, with_gpus):
    _, env = with_gpus(Gpu(cpus=HERE), Gpu(cpus=HERE))
    (said, code), _ = step(tmp_path, env, tasks=2)
    assert code == 0, said
    assert row(said, "binding").startswith(f"GPU 0, GPU 1, CPUs {HERE[0]}")


def test_each_of_several_tasks_on_a_host_has_one_worker(tmp_path, with_gpus):
    """Several tasks mean one per GPU, and each may see all GPUs."""
    _, env = with_gpus(*[Gpu(cpus=HERE)] * (len(os.sched_getaffinity(0)) + 1))
    (said, code), _ = step(tmp_path, env, tasks=2)
    assert code == 0, said
    assert "workers" not in row(said, "CPUs")
    assert "workers" in row(doctor(tmp_path, env).stdout, "CPUs")


def test_gpus_that_are_far_from_the_cpus(tmp_path, with_gpus):
    _, env = with_gpus(Gpu(cpus=ELSEWHERE))
    done = doctor(tmp_path, env)
    assert done.returncode == 0, done.stdout
    said = row(done.stdout, "binding")
    assert "GPU 0 is near CPUs 1022-1023, but this task has " in said
    assert "--gres-flags=enforce-binding" in said


def test_no_gpu_no_word_about_it(tmp_path, env):
    said = doctor(tmp_path, env).stdout
    assert row(said, "GPUs").startswith("no NVIDIA driver")
    assert not any(row(said, check) for check in ("GPU health", "binding", "MPS"))


@pytest.mark.parametrize(
    ("gpu", "code", "check", "says"),
    [
        (Gpu(), 0, "GPU health", "nothing is wrong with GPU 0"),
        (Gpu(ecc=3, recovery=None), 1, "GPU 0 ECC", "3 uncorrected memory errors"),
        (Gpu(rows=(True, False)), 0, "GPU 0 pending", "a row remap is pending -> "),
    ],
)
def test_how_the_gpus_are(tmp_path, with_gpus, gpu, code, check, says):
    _, env = with_gpus(gpu)
    done = doctor(tmp_path, env)
    assert done.returncode == code, done.stdout
    assert says in row(done.stdout, check)


@pytest.mark.parametrize(
    ("gpu", "there", "grade", "says"),
    [
        (Gpu(), True, "ok", "/nvidia-cuda-mps-control"),
        (Gpu(mode=EXCLUSIVE), True, "ok", "control; GPU 0 needs it for more than one"),
        (Gpu(), False, "ok", "GPU 0: shared by time slices, without MPS"),
        (Gpu(mode=EXCLUSIVE), False, "warn", "GPU 0: several workers cannot share it without MPS"),
        (Gpu(mode=PROHIBITED), True, "FAIL", "GPU 0: the compute mode is PROHIBITED"),
    ],
)
def test_what_more_workers_than_gpus_could_have(tmp_path, with_gpus, gpu, there, grade, says):
    _, env = with_gpus(gpu)
    path = f"{SOURCE.parent}:{os.environ['PATH']}" if there else "/nowhere"
    done = doctor(tmp_path, env | {"PATH": path})
    assert says in row(done.stdout, "MPS")
    assert re.search(rf"(?m)^{grade} +MPS ", done.stdout)


@pytest.mark.parametrize(
    ("gpus", "changes", "says"),
    [
        ((Gpu(), Gpu(error=LOST)), {}, "GPU 1: GPU is lost -> report it to the administrator"),
        ((Gpu(),), {"CUDA_VISIBLE_DEVICES": "1"}, "names GPU 1, which is not there"),
    ],
)
def test_gpus_that_would_break_a_training(tmp_path, with_gpus, gpus, changes, says):
    _, env = with_gpus(*gpus)
    done = doctor(tmp_path, env | changes)
    assert done.returncode == 1, done.stdout
    assert says in row(done.stdout, "GPUs")


def test_a_torch_that_cannot_use_the_gpus(tmp_path, with_gpus):
    _, env = with_gpus(Gpu(), Gpu(), usable=0)
    done = doctor(tmp_path, env)
    assert done.returncode == 1, done.stdout
    assert "torch can use 0 -> the driver may be too old" in row(done.stdout, "GPUs")


def test_a_process_uses_one_instance_of_mig(tmp_path, with_gpus):
    of_both = [Instance("MIG-a"), Instance("MIG-b", gi=2)]
    _, env = with_gpus(Gpu(mig=True, instances=of_both, cpus=HERE), usable=1)
    done = doctor(tmp_path, env)
    assert done.returncode == 0, done.stdout
    assert row(done.stdout, "binding").count("CPUs ") == 2


def test_a_driver_that_hangs(tmp_path, with_gpus):
    _, env = with_gpus(Gpu(), hang=True)
    done = doctor(tmp_path, env | {"SLURM_GPUS_ON_NODE": "1"}, "--timeout", "3")
    assert done.returncode == 1, done.stdout
    assert "NVML did not answer within 3 s" in row(done.stdout, "GPUs")
    done = doctor(tmp_path, env, "--timeout", "3")
    assert done.returncode == 0, done.stdout  # nobody has asked for a GPU


def test_an_unexpected_error_is_a_finding(tmp_path, env, monkeypatch):
    def break_down(*_):
        raise MemoryError("no room")

    monkeypatch.setattr(doctor_host, "_ask_torch", break_down)
    found = doctor_host.examine(doctor_host.surroundings(env), tmp_path, 1.0)[-1]
    assert found.found == "a check broke: MemoryError('no room')"


@pytest.mark.parametrize("environ", [{}, {"PYTHON_EXEC": "python9"}])
def test_an_interpreter_that_cannot_be_started(monkeypatch, environ):
    """PYTHON_EXEC is named only if it is set."""

    def fails(python):
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(doctor_host, "Question", fails)
    finding = doctor_host._ask_torch(environ)
    assert finding.grade is Grade.FAIL
    assert finding.found.endswith(f": {os.strerror(errno.EAGAIN)}")
    for text in (finding.found, finding.advice):
        assert ("PYTHON_EXEC" in text) == bool(environ)


def test_an_agent_knows_nothing_of_the_doctor():
    program = (
        "import sys, hpclaunch.agent.assembly, hpclaunch.cli\n"
        "print([m for m in sys.modules if m.startswith(('hpclaunch', 'rich'))])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "hpclaunch.agent.assembly" in done.stdout
    for name in ("rich", "psutil", "doctor", "checks", "task_reports", "reachability"):
        assert name not in done.stdout
