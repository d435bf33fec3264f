"""The meaning of Slurm's environment, as tables with the values of real steps."""

import contextlib
import itertools
import os
import socket
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from damaged_data import damaged
from hpclaunch.core.protocol.errors import UsageError
from hpclaunch.core.protocol.job_state import JobState
from hpclaunch.core.protocol.model import Place
from hpclaunch.system.hosts import requeue, slurm, slurm_end
from hpclaunch.system.network import launches, view_client
from hpclaunch.system.shared import scontrol, slurm_steps

pytestmark = pytest.mark.starts


@pytest.fixture(autouse=True)
def outside_of_slurm(monkeypatch):
    """Hide the developer's own job, in which the tests may run."""
    monkeypatch.setattr(slurm, "own_step", lambda: None)


STEP = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NUM_NODES": "3",
    "SLURM_JOB_NODELIST": "n[1-3]",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "n[2-3]",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    "SLURM_NODEID": "1",
    "SLURM_LOCALID": "0",
    "SLURM_PROCID": "1",
    "SLURMD_NODENAME": "n3",
}


def read(**changes):
    return slurm.allocation({**STEP, **changes}, unique="x")


def test_a_step_on_part_of_the_jobs_nodes():
    where = read()
    assert where.name == "7.0"
    assert where.places == (Place(0, 0, "n2"), Place(1, 1, "n3"))
    assert where.index == 1


@pytest.mark.parametrize(
    ("host", "hosts", "index"),
    [
        ("n3", ["n3", "n3", "n1", "n2", "n2"], 0),
        ("n3.cluster", ["n3", "n3", "n1", "n2", "n2"], 0),
        ("", ["n1", "n2", "n2", "n3", "n3"], 3),
    ],
)
def test_who_leads_may_be_chosen(host, hosts, index):
    nodes = {"SLURM_STEP_NODELIST": "n[1-3]", "SLURM_STEP_TASKS_PER_NODE": "1,2(x2)"}
    where = read(**nodes, SLURM_PROCID="3", SLURM_NODEID="2").led_from(host)
    assert [place.host for place in where.places] == hosts
    assert [place.index for place in where.places] == [0, 1, 2, 3, 4]
    order = {host: i for i, host in enumerate(dict.fromkeys(hosts))}
    assert [place.node for place in where.places] == [order[host] for host in hosts]
    assert (where.index, where.task) == (index, 3)


def test_uneven_tasks_per_node():
    where = read(SLURM_STEP_TASKS_PER_NODE="2,1", SLURM_LOCALID="0")
    assert where.places == (Place(0, 0, "n2"), Place(1, 0, "n2"), Place(2, 1, "n3"))
    assert where.index == 2


def test_a_requeued_job_is_another_start():
    assert read(SLURM_RESTART_COUNT="2").identity == "7.0.r2"


@pytest.mark.parametrize("own", ["", "7", "70"], ids=["none", "the job's", "the array's"])
def test_a_step_of_one_launch_is_its_name(own):
    where = slurm.allocation({**STEP, "SLURM_ARRAY_JOB_ID": "70"}, unique="x", run_id=own)
    assert (where.name, where.identity) == ("7.0", "7.0")


@pytest.mark.parametrize(("element", "others"), [("1", (0, 2)), ("2", (1, 1)), ("3", (2, 0))])
def test_the_elements_of_an_array_before_and_after_this_one(element, others):
    array = {"SLURM_ARRAY_TASK_MIN": "1", "SLURM_ARRAY_TASK_MAX": "3"}
    assert slurm_steps.other_elements({**array, "SLURM_ARRAY_TASK_ID": element}) == others
    assert slurm_steps.other_elements({}) == (0, 0)


def test_only_the_element_with_the_id_of_the_array_is_requeued_by_its_index():
    """Slurm would requeue the whole array. The variables of other jobs may be inherited ones."""
    element = {"SLURM_ARRAY_JOB_ID": "70", "SLURM_ARRAY_TASK_ID": "2"}
    assert requeue.name_of("70", element) == "70_2"
    assert requeue.name_of("72", element) == "72"
    assert requeue.name_of("72", {}) == "72"


@pytest.mark.parametrize(
    ("states", "is_refused"),
    [
        (["CANCELLED", "CANCELLED"], False),  # scancel 70
        (["PENDING", "RUNNING"], True),
        ([], True),  # Slurm does not answer
    ],
)
def test_elements_that_slurm_does_not_cancel(tmp_path, monkeypatch, states, is_refused):
    element = "JobId=70 ArrayJobId=70 ArrayTaskId=2-6%1 JobName=job UserId=me(1) JobState={}\n"
    (tmp_path / "elements").write_text("".join(map(element.format, states)))
    for name, text in (
        ("scancel", "echo Invalid job id specified >&2; exit 1"),
        ("scontrol", f"cat '{tmp_path}/elements'"),
    ):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    refused = pytest.raises(requeue.RefusedError, match="Invalid job id specified")
    with refused if is_refused else contextlib.nullcontext():
        requeue.cancel_rest("70")


def test_the_users_options_for_scancel_spare_no_element(tmp_path, monkeypatch):
    (tmp_path / "scancel").write_text('#!/bin/sh\n[ -z "$SCANCEL_PARTITION" ] || exit 1\n')
    (tmp_path / "scancel").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SCANCEL_PARTITION", "gpu")
    requeue.cancel_rest("70")


def test_launches_of_one_step_differ_by_their_ids():
    """The names are parts of paths, and end with the number of the run."""
    again = {**STEP, "SLURM_RESTART_COUNT": "1"}
    one, other = (slurm.allocation(again, unique="x", run_id=i) for i in ("a.r2", "a/r2"))
    assert one.name == other.name == "7.0_a_r2.r1"
    assert one.identity != other.identity


def test_the_hosts_own_name_decides_where_it_is_known():
    assert read(SLURMD_NODENAME="n2").index == 0
    assert read(SLURMD_NODENAME="elsewhere").index == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"SLURM_STEP_TASKS_PER_NODE": "1"},
        {"SLURM_STEP_TASKS_PER_NODE": "1(x2"},
        {"SLURM_STEP_TASKS_PER_NODE": ""},
        {"SLURM_LOCALID": "3"},
        {"SLURM_LOCALID": "one"},
        {"SLURM_STEP_NODELIST": "n[2-"},
        {"SLURM_STEP_NODELIST": ""},
        {"SLURM_RESTART_COUNT": "?"},
    ],
)
def test_nonsense_is_one_clear_line(changes):
    with pytest.raises(UsageError, match="makes no sense"):
        read(**changes)


@pytest.mark.parametrize("missing", ["SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE", "SLURM_JOB_ID"])
def test_a_missing_variable_is_named(missing):
    environ = {k: v for k, v in STEP.items() if k != missing}
    with pytest.raises(UsageError, match=missing):
        slurm.allocation(environ, unique="x")


def test_a_job_of_several_nodes_without_srun():
    batch = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "SLURM_NODEID": "0"}
    with pytest.raises(UsageError, match="prefix with srun"):
        slurm.allocation(batch, unique="x")


def test_a_batch_script_of_one_node_needs_no_srun():
    where = slurm.allocation({"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "1"}, unique="x")
    assert (where.name, len(where.places), where.index) == ("7.batch", 1, 0)


def test_without_slurm():
    where = slurm.allocation({}, unique="20260101-1")
    assert (where.name, len(where.places)) == ("local-20260101-1", 1)


@pytest.mark.parametrize(
    ("nodelist", "hosts"),
    [
        ("n1", ["n1"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[001-003]", ["n001", "n002", "n003"]),
        ("n[3,1]", ["n3", "n1"]),
        ("n[9-11,08]-ib0,m", ["n9-ib0", "n10-ib0", "n11-ib0", "n08-ib0", "m"]),
        ("gpu2,cpu1,gpu1", ["gpu2", "cpu1", "gpu1"]),
        ("b1,a[1-2]", ["b1", "a1", "a2"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("node[01-02]-int", ["node01-int", "node02-int"]),
        (
            "a[1-2]b[3-4]c[5,07]",
            ["a1b3c5", "a1b3c07", "a2b3c5", "a2b3c07", "a1b4c5", "a1b4c07", "a2b4c5", "a2b4c07"],
        ),
    ],
)
def test_host_lists(nodelist, hosts):
    """The order is that of scontrol show hostnames."""
    assert slurm.expand(nodelist) == hosts


@pytest.mark.parametrize("nodelist", ["n[2-", "n]", "n[]", "n[a]", "n[-3]", "n[3-1]", "a b", ","])
def test_host_lists_that_make_no_sense(nodelist):
    with pytest.raises(ValueError, match="makes no sense"):
        slurm.expand(nodelist)


@pytest.mark.starts
@pytest.mark.parametrize(
    ("words", "ends"),
    [
        ("hpclaunch train.py", True),
        ("-k hpclaunch train.py", False),
        ("-J hpclaunch --no-kill hpclaunch train.py", False),
        ("--output=hpclaunch-logs/%j --no-kill hpclaunch train.py", False),
        ("-o hpclaunch-logs/%j -k bash -c hpclaunch", False),
        ("-J hpclaunch bash run.sh -k", False),
        ("bash -c hpclaunch -k 5 torchrun", True),
        ("hpclaunch train.py -k 5", True),
        ("python train.py", False),
    ],
)
def test_only_options_of_srun_itself_keep_a_step_when_a_node_is_lost(tmp_path, words, ends):
    srun = tmp_path / "srun"
    srun.write_text("#!/bin/sh\necho here\nread until_the_end_of_the_test\n")
    srun.chmod(0o755)
    env = {"SLURM_JOB_ID": f"7{os.getpid()}"}
    with subprocess.Popen(
        [srun, *words.split()], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        assert slurm.ends_with_a_node(env) is ends


def test_a_job_id_that_is_no_text():
    assert not slurm.ends_with_a_node({"SLURM_JOB_ID": "7\udcff"})


@pytest.mark.parametrize(
    ("text", "counts"), [("1", [1]), ("2(x3),1", [2, 2, 2, 1]), ("4,1(x2)", [4, 1, 1])]
)
def test_tasks_per_node(text, counts):
    assert slurm.tasks_per_node(text) == counts


@pytest.mark.timeout(30)
def test_tasks_of_as_many_uneven_nodes_as_there_may_be():
    """In a moment: it took minutes when each count was checked against all those before."""
    ones = ",".join(["1"] * slurm.MOST)
    assert slurm.tasks_per_node(ones) == [1] * slurm.MOST
    with pytest.raises(ValueError, match=f"more than {slurm.MOST}") as e:
        slurm.tasks_per_node(f"{ones},1")
    assert len(str(e.value)) < 100  # it is for a line


@pytest.mark.parametrize(
    "changes",
    [
        {"SLURM_STEP_NODELIST": "n[1-999999999]"},
        {"SLURM_STEP_NODELIST": "r[1-9999]n[1-9999]"},
        {"SLURM_STEP_TASKS_PER_NODE": "1(x99999999999)"},
        {"SLURM_STEP_TASKS_PER_NODE": "99999999999"},
        {"SLURM_STEP_TASKS_PER_NODE": "0(x99999999999)"},
    ],
)
def test_absurd_numbers_are_refused_before_anything_is_made_of_them(changes):
    with pytest.raises(UsageError, match="makes no sense"):
        read(**changes)


HET = {"SLURM_HET_SIZE": "2", "SLURM_JOB_ID_HET_GROUP_0": "7", "SLURM_JOB_ID_HET_GROUP_1": "8"}


def test_all_components_of_a_heterogeneous_job_are_one():
    assert read(**HET, SLURM_JOB_ID="8").identity == read(**HET).identity
    assert read(SLURM_JOB_ID="8").identity != read().identity


def test_a_job_that_a_heterogeneous_one_has_submitted():
    """The new job inherits the variables of the other."""
    assert read(**HET, SLURM_JOB_ID="9").name == "9.0"
    batch = {**HET, "SLURM_JOB_ID": "9", "SLURM_JOB_NUM_NODES": "1", "SLURMD_NODENAME": "n1"}
    assert slurm.allocation(batch, unique="x").name == "9.batch"
    with pytest.raises(UsageError, match="job 7 has 2 components"):
        slurm.allocation(batch | {"SLURM_JOB_ID": "7"}, unique="x")


def test_this_task_alone():
    where = slurm.allocation(STEP, unique="x", alone=True)
    assert (where.name, where.alone, where.index) == ("7.0.1", True, 0)


BATCH = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "n[1-2]"}


def test_one_node_of_several_when_that_is_meant():
    where = slurm.allocation({**BATCH, "SLURMD_NODENAME": "n1"}, unique="x", alone=True)
    assert (where.name, where.alone) == ("7.batch", True)


def test_a_host_of_a_job_has_the_name_that_slurm_has_for_it():
    """srun does not take another one, which the host itself may have."""
    named = {"SLURMD_NODENAME": "n3"}
    batch = slurm.allocation({**named, "SLURM_JOB_ID": "7"}, unique="x")
    task = slurm.allocation(STEP, unique="x", alone=True)
    outside = slurm.allocation(named, unique="x")
    hosts = [where.places[where.index].host for where in (batch, task, outside)]
    assert hosts == ["n3", "n3", socket.gethostname()]


@pytest.mark.parametrize("step", ["4294967290", "-6"], ids=["Slurm 22.05", "Slurm 26.05"])
def test_the_shell_that_salloc_opens_on_a_node_is_no_step_of_all_nodes(step):
    shell = {**STEP, **BATCH, "SLURM_STEP_ID": step, "SLURM_STEP_NODELIST": "n1"}
    with pytest.raises(UsageError, match="prefix with srun"):
        slurm.allocation(shell, unique="x")


@pytest.mark.parametrize("nodes", ["1", "2"])
def test_the_shell_of_salloc_on_a_login_node(nodes):
    shell = {**BATCH, "SLURM_JOB_NUM_NODES": nodes}
    with pytest.raises(UsageError, match="prefix with srun"):
        slurm.allocation(shell, unique="x")
    if nodes == "1":
        with pytest.raises(UsageError, match="not a node of job 7"):
            slurm.allocation(shell, unique="x", alone=True)


JOB_7 = (
    b"JobId=7 JobName=my job UserId=me(1) Requeue=1 Restarts=0 BatchFlag=1 JobState=RUNNING "
    b"StartTime=2026-11-26T12:00:00 EndTime=1800000000 PreemptTime=None TimeLimit=1-02:03:04 "
    b"Partition=main GraceTime=30 PreemptMode=REQUEUE NumNodes=2 NumTasks=2 CPUs/Task=1 "
    b"NodeName=n1 NodeAddr=10.0.0.1 State=IDLE+DRAIN TresPerNode=gres:gpu:2 Command=/job.sh a b "
    b"WorkDir=/home/me StdErr=/e StdOut=/o\n"
)
OUTPUTS = (
    JOB_7,
    b"n1\nn2\n",
    b"7 2 RUNNING my job\n",
    b"8 afterany:7(unfulfilled) my job\n",
    b"KillWait = 30 sec\n",
    b"75;cluster\n",
)


@pytest.mark.fuzz
@given(st.lists(damaged(OUTPUTS), min_size=1, max_size=6), st.sampled_from([0, 0, 1]))
def test_any_output_of_its_commands(outputs, code):
    """The readers raise only their own errors. Some outputs come where others are expected."""
    env = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "SLURM_RESTART_COUNT": "0"}
    answers = itertools.cycle(outputs)

    def run(command, **_):
        return subprocess.CompletedProcess(command, code, next(answers), next(answers))

    def check_run(command, check=False, **_):
        done = run(command)
        if check and code:
            raise subprocess.CalledProcessError(code, command)
        return done

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "run", check_run)
        patch.setattr(view_client, "looked_patiently", lambda _: [])
        patch.setenv("SLURM_JOB_ID", "7")
        _, found = slurm_end.ask(scontrol.shown("job", "7"), "1800000000", 0)
        assert JobState(found["state"])
        assert slurm_end.end_of_step(scontrol.shown("step", "7.0"), 1.0) >= 0
        assert slurm_end.kill_wait() >= 0
        assert isinstance(slurm_end.draining("n1", ()), tuple)
        assert isinstance(scontrol.node_address("n1"), str)
        for read, error in (
            (lambda: requeue.requeue("7", env), requeue.RefusedError),
            (lambda: launches.find("7", env), launches.NoLaunchError),
            (lambda: launches.find("7.0", env), launches.NoLaunchError),
            (lambda: launches.all_launches(env), launches.NoLaunchError),
        ):
            with contextlib.suppress(error):
                read()
