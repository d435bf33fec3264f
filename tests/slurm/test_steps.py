"""Every way in which users start hpclaunch: in steps, jobs and shells of Slurm."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path

import pytest

from .cluster import Cluster, Job, eventually
from .conftest import SCRIPTS, Launch

pytestmark = pytest.mark.usefixtures("light_torch")  # programs that are no Python may use torch

SIMPLE = SCRIPTS / "simple.py"
RANKS = {  # Slurm's variables, and torchrun's variables with the same value
    "SLURM_PROCID": "RANK",
    "SLURM_LOCALID": "LOCAL_RANK",
    "SLURM_NODEID": "GROUP_RANK",
    "SLURM_NTASKS": "WORLD_SIZE",
    "SLURM_NPROCS": "WORLD_SIZE",
    "SLURM_NNODES": "GROUP_WORLD_SIZE",
}


def environments_of(job: Job) -> dict[int, Mapping[str, str]]:
    ended = job.wait()
    assert ended.code == 0, str(ended)
    envs = job.environments()
    require_slurms_ranks(envs)
    return envs


def require_slurms_ranks(envs: Mapping[int, Mapping[str, str]]) -> None:
    for env in envs.values():
        assert {name: env[name] for name in RANKS} == {n: env[rank] for n, rank in RANKS.items()}


def test_one_task_per_gpu(launch: Launch) -> None:
    """Each task has one worker, as in older recipes, and LOCAL_RANK counts the tasks of a node."""
    options = ["--ntasks-per-node=2", "--gpus-per-node=2"]
    job = launch(SIMPLE, srun="srun --wait=60 hpclaunch", nodes=2, options=options)
    envs = environments_of(job)
    assert [env["hostname"] for env in envs.values()] == ["n1"] * 2 + ["n2"] * 2
    assert [env["LOCAL_RANK"] for env in envs.values()] == ["0", "1"] * 2
    assert {env["SLURM_TASKS_PER_NODE"] for env in envs.values()} == {"2(x2)"}
    assert {env["LOCAL_WORLD_SIZE"] for env in envs.values()} == {"2"}


def test_one_task_per_gpu_that_sees_no_other(launch: Launch) -> None:
    options = ["--ntasks-per-node=2", "--gpus-per-task=1"]
    job = launch(SIMPLE, srun="srun hpclaunch", nodes=2, options=options)
    envs = environments_of(job)
    assert len(envs) == 4
    assert [env["HPCLAUNCH_LOCAL_RANK"] for env in envs.values()] == ["0", "1", "0", "1"]


def test_no_task_ends_before_the_others(launch: Launch) -> None:
    """A task that ends early would start the countdown of `srun --wait`."""
    body = 'test "$RANK" = 3 && sleep 8; echo "rank $RANK"'
    job = launch(
        "--no-python",
        "bash",
        "-c",
        body,
        srun="srun --wait=6 --kill-on-bad-exit=1 hpclaunch",
        nodes=2,
        options=["--ntasks-per-node=2"],
    )
    ended = job.wait()
    assert ended.code == 0, str(ended)
    assert sorted(ended.output.splitlines()) == [f"rank {r}" for r in range(4)]


def test_uneven_tasks_and_uneven_workers(launch: Launch) -> None:
    srun = "srun --ntasks=3 --distribution=block hpclaunch"
    envs = environments_of(launch(SIMPLE, srun=srun, nodes=2, options=["--ntasks-per-node=2"]))
    assert [env["hostname"] for env in envs.values()] == ["n1", "n1", "n2"]
    assert {env["SLURM_TASKS_PER_NODE"] for env in envs.values()} == {"2,1"}


def test_ranks_follow_slurms_tasks(launch: Launch, tmp_path: Path) -> None:
    """Rank 0 is where task 0 is, not on the first node by name."""
    (tmp_path / "hosts").write_text("n3\nn1\nn2\n")
    srun = "SLURM_HOSTFILE=hosts srun --distribution=arbitrary hpclaunch"
    args = ["--nproc", 1, "--nnodes", 3, "--master-addr", "n3", SIMPLE]
    job = launch(*args, srun=srun, options=["--ntasks=3"])
    envs = environments_of(job)
    assert [env["hostname"] for env in envs.values()] == ["n3", "n1", "n2"]
    assert {env["SLURM_STEP_NODELIST"] for env in envs.values()} == {"n3,n[1-2]"}
    assert "hpclaunch:" not in job.output


def test_ranks_of_a_node_are_contiguous_in_every_distribution_of_tasks(
    cluster: Cluster, launch: Launch, tmp_path: Path
) -> None:
    """Each distribution is that of a step of the same job."""
    expected = {
        "cyclic": "n1 n1 n2 n2",
        "plane=1": "n1 n1 n2 n2",
        "arbitrary": "n2 n2 n2 n1",
    }
    (tmp_path / "hosts").write_text("n2\nn1\nn2\nn2\n")
    steps = ["set -e"]
    for name in expected:
        file = "SLURM_HOSTFILE=../hosts " if name == "arbitrary" else ""
        srun = f"{file}srun --ntasks=4 --distribution={name} hpclaunch {SIMPLE}"
        steps.append(f"mkdir {name}; cd {name}; {srun}; cd ..")
    job = launch(srun="\n".join(steps), nodes=2, options=["--ntasks-per-node=3"])
    ended = job.wait()
    assert ended.code == 0, str(ended)
    for name, hosts in expected.items():
        envs = Job(cluster, job.id, tmp_path / name, tmp_path / "none").environments()
        require_slurms_ranks(envs)
        assert [env["hostname"] for env in envs.values()] == hosts.split()


def test_a_server_on_the_first_node_and_the_training_on_the_others(launch: Launch) -> None:
    """In one step, --nnodes is the number of nodes that train, and the endpoint is the head."""
    srun = """srun bash -c 'if [ $SLURM_PROCID = 0 ]; then sleep 1; else hpclaunch "$@"; fi' -"""
    args = ["--nproc", 1, "--nnodes", 2, "--rdzv-backend", "c10d", "--rdzv-endpoint", "n2:29500"]
    envs = environments_of(launch(*args, SIMPLE, srun=srun, timing={"goodbye": 4.0}))
    assert [env["hostname"] for env in envs.values()] == ["n2", "n3"]


def test_a_different_number_of_workers_on_every_node(launch: Launch) -> None:
    srun = "srun bash -c 'exec hpclaunch --nproc $((SLURM_NODEID + 1)) \"$@\"' -"
    job = launch(SIMPLE, srun=srun, nodes=2)
    envs = environments_of(job)
    assert [env["hostname"] for env in envs.values()] == ["n1", "n2", "n2"]
    assert "the nodes have different numbers of workers: 1,2" in job.output


def test_a_heterogeneous_job(cluster: Cluster, tmp_path) -> None:
    body = f"srun --het-group=0,1 hpclaunch --nproc 1 {SIMPLE}"
    options = ["--gpus-per-node=1", ":", "--nodes=2", "--ntasks-per-node=1", "--gpus-per-node=2"]
    job = cluster.sbatch(body, directory=tmp_path, nodes=1, options=options)
    envs = environments_of(job)
    assert sorted(env["hostname"] for env in envs.values()) == ["n1", "n2", "n3"]


def test_elements_of_an_array_are_jobs_of_their_own(cluster: Cluster, tmp_path) -> None:
    body = f"mkdir $SLURM_ARRAY_TASK_ID; cd $SLURM_ARRAY_TASK_ID; srun hpclaunch --nproc 2 {SIMPLE}"
    job = cluster.sbatch(body, directory=tmp_path, nodes=1, options=["--array=1-2"])
    eventually("the end of both", lambda: not cluster.jobs())
    for element in ("1", "2"):
        envs = Job(cluster, job.id, tmp_path / element, tmp_path / "none").environments()
        assert [env["WORLD_SIZE"] for env in envs.values()] == ["2", "2"]
        assert {env["SLURM_ARRAY_TASK_ID"] for env in envs.values()} == {element}


@pytest.mark.parametrize("shell", ["srun --pty bash", "srun --nodes=1 --ntasks=1 bash"])
def test_a_shell_on_a_node(cluster: Cluster, tmp_path, shell) -> None:
    """In `srun --pty bash`, hpclaunch is used as on any machine."""
    words = [*shlex.split(shell), "-c", f"hpclaunch --nproc 2 {SIMPLE}"]
    text = cluster.on("ctl", ["env", "-C", str(tmp_path), f"HOME={tmp_path}", *words])
    assert "rank 1 is on n" in text


TYPED = """
import os, pty, sys
pid, terminal = pty.fork()
if pid == 0:
    os.execvp("srun", ["srun", "--pty", "bash", "--norc"])
os.write(terminal, sys.argv[1].encode() + b"; exit\\n")
seen = b""
try:
    while some := os.read(terminal, 65536):
        seen += some
except OSError:
    pass
print(seen.decode(errors="replace"))
"""


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_command_in_a_shell_of_several_tasks(
    cluster: Cluster, tmp_path: Path, nodes: int
) -> None:
    """Only the first task has the terminal; the shells of the others have ended."""
    (tmp_path / "typed.py").write_text(TYPED)
    args = f"--nproc 2 {SIMPLE}"
    typed = (
        f"hpclaunch {args}" if nodes == 1 else f"hpclaunch {args}; srun --overlap hpclaunch {args}"
    )
    job = cluster.sbatch(
        f"python3 typed.py '{typed}'",
        directory=tmp_path,
        nodes=nodes,
        options=["--ntasks-per-node=2"],
    )
    ended = job.wait()
    assert ended.code == 0, str(ended)
    hosts = [env["hostname"] for env in job.environments().values()]
    if nodes == 1:
        assert hosts == ["n1", "n1"], str(ended)
        assert "waiting for" not in ended.output
    else:
        text = f"step {job.id}.0 has 2 nodes, but only its first task runs this shell: prefix with "
        alone = "(or, to train on this node alone, use hpclaunch --standalone)"
        assert f"{text}srun --overlap {alone}" in ended.output
        assert hosts == ["n1"] * 4 + ["n2"] * 4, str(ended)


@pytest.mark.parametrize("cpus", [1, 2])
def test_srun_in_a_worker(launch: Launch, cpus: int) -> None:
    """By default, srun starts a task for each worker, even if workers share a CPU."""
    each = "--nodes=$SLURM_NNODES --ntasks=$SLURM_NNODES"
    body = f'test $RANK = 1 || exit 0; for n in "" "{each}"; do '
    body += "eval echo in all: $(srun --overlap $(eval echo $n) hostname | sort); done"
    args = ["--nproc", 2, "--no-python", "bash", "-c", body]
    job = launch(*args, srun="srun hpclaunch", nodes=2, options=[f"--cpus-per-task={cpus}"])
    ended = job.wait()
    assert ended.code == 0, str(ended)
    lines = [line for line in ended.output.splitlines() if line.startswith("in all")]
    assert lines == ["in all: n1 n1 n2 n2", "in all: n1 n2"], str(ended)


def test_salloc(cluster: Cluster, tmp_path) -> None:
    """In the shell of salloc, srun is needed; without it, one line says so."""
    inside = f"hpclaunch {SIMPLE}; echo code $?; srun hpclaunch --nproc 1 {SIMPLE}"
    words = ["salloc", "--nodes=2", "--ntasks-per-node=1", "bash", "-c", inside]
    text = cluster.on("ctl", ["env", "-C", str(tmp_path), f"HOME={tmp_path}", *words])
    assert "prefix with srun" in text
    assert "code 2" in text
    assert "rank 0 is on n" in text
    assert "rank 1 is on n" in text


SHARE = "import os; print(*os.sched_getaffinity(0), os.environ['SLURM_CPUS_PER_TASK'], sep=',')"


@pytest.mark.parametrize("tasks", [1, 2])
def test_cpus_are_divided(launch: Launch, tasks: int) -> None:
    """Two workers of one or of two tasks have different CPUs, though their number is not given."""
    if os.cpu_count() == 1:
        pytest.skip("one CPU cannot be divided")
    options = [f"--ntasks-per-node={tasks}"]
    args = ["--nproc", 2 // tasks, "python3", "-c", SHARE]
    ended = launch(*args, srun="srun hpclaunch", nodes=1, options=options).wait()
    assert ended.code == 0, str(ended)
    lines = [line for line in ended.output.splitlines() if not line.startswith("hpclaunch:")]
    one, other = ([int(number) for number in line.split(",")] for line in lines)
    assert not {*one[:-1]} & {*other[:-1]}
    assert [one[-1], other[-1]] == [len(one) - 1, len(other) - 1]


def test_several_workers_on_one_cpu_are_pointed_out(launch: Launch) -> None:
    job = launch("--nproc", 2, SIMPLE, srun="srun taskset -c 0 hpclaunch", nodes=1)
    envs = environments_of(job)
    assert {env["SLURM_CPUS_PER_TASK"] for env in envs.values()} == {"1"}
    assert "2 workers on n1 share 1 CPU: ask Slurm for more with --cpus-per-task=N" in job.output


def test_slurm_overrides_options_that_contradict_it(launch: Launch) -> None:
    job = launch(
        "--nnodes=4",
        "--node-rank=0",
        "--rdzv-backend=c10d",
        "--rdzv-endpoint=n2:1234",
        "--rdzv-conf=is_host=1",
        "--local-addr=192.0.2.1",
        "--nproc_per_node=1",
        "--monitor-interval=5",
        SIMPLE,
        srun="srun hpclaunch",
    )
    envs = environments_of(job)
    assert len(envs) == 3
    lines = [line for line in job.output.splitlines() if line.startswith("hpclaunch:")]
    assert sorted(lines) == [
        "hpclaunch: --local-addr 192.0.2.1 is not an address of n1 that others reach: ignored",
        "hpclaunch: --local-addr 192.0.2.1 is not an address of n2 that others reach: ignored",
        "hpclaunch: --nnodes 4, but Slurm says 3: using 3",
        "hpclaunch: --node-rank 0 on n2, but Slurm says 1: using 1",
        "hpclaunch: --rdzv-endpoint n2 is not the first node of this step: using n1",
        "hpclaunch: without effect here: --monitor-interval (failures are seen at once); "
        "--rdzv-conf is_host",
    ]


def test_options_that_count_tasks_contradict_nothing(launch: Launch) -> None:
    """torchrun's nodes are agents, one for each task."""
    body = "exec hpclaunch --nnodes $SLURM_NTASKS --node-rank $SLURM_PROCID --master-addr n1 $0"
    srun = f"srun bash -c '{body}'"
    job = launch(SIMPLE, srun=srun, nodes=2, options=["--ntasks-per-node=2"])
    assert len(environments_of(job)) == 4
    assert "hpclaunch:" not in job.output


def test_standalone_in_a_step_of_several_tasks(launch: Launch) -> None:
    """Each task trains on its own, as with torchrun."""
    body = 'echo "$SLURM_PROCID: rank $RANK of $WORLD_SIZE"'
    srun = "srun hpclaunch --nproc 1"
    job = launch("--standalone", "--no-python", "bash", "-c", body, srun=srun, nodes=2)
    ended = job.wait()
    assert ended.code == 0, str(ended)
    lines = sorted(ended.output.splitlines())
    assert lines[:2] == [f"{task}: rank 0 of 1" for task in range(2)]
    assert lines[2:] == [
        "hpclaunch: --standalone: each of the 2 tasks of this step trains on its own"
    ]


def test_steps_with_a_common_endpoint(cluster: Cluster, tmp_path) -> None:
    """A loop starts one srun per node; torchrun's options give the numbers of the nodes."""
    body = (
        "for i in 1 2; do srun --nodes=1 --ntasks=1 --nodelist=n$i hpclaunch --nnodes=2 --nproc=1 "
        f"--node_rank=$((i - 1)) --master_addr=n1 --master_port=29511 {SIMPLE} & done; wait"
    )
    job = cluster.sbatch(body, directory=tmp_path, nodes=2)
    ended = job.wait()
    assert ended.code == 0, str(ended)
    assert [env["hostname"] for env in job.environments().values()] == ["n1", "n2"]


TWO = """
say='echo "$0: rank $RANK of $WORLD_SIZE on $(hostname)"'
options="--nnodes 2 --nproc 1 --rdzv-backend c10d --rdzv-endpoint n1:29511 --no-python"
hpclaunch $options --rdzv-id a bash -c "$say" A & first=$!
hpclaunch $options --rdzv-id b bash -c "$say" B & second=$!
wait $first && wait $second
"""


def test_two_launches_at_once_in_one_step(launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "two.sh").write_text(TWO)
    job = launch(srun="srun bash two.sh", nodes=2)
    ended = job.wait()
    assert ended.code == 0, str(ended)
    lines = sorted(line for line in ended.output.splitlines() if ": rank " in line)
    assert lines == [f"{name}: rank {r} of 2 on n{r + 1}" for name in "AB" for r in (0, 1)]
    logs = tmp_path / "hpclaunch-logs"
    assert sorted(os.listdir(logs)) == [f"{job.id}.0_a", f"{job.id}.0_b"]
    for name, word in (("a", "A"), ("b", "B")):
        files = (logs / f"{job.id}.0_{name}" / "round-0").glob("rank-*.out")
        assert {file.read_text()[0] for file in files} == {word}


ANOTHER = """
hpclaunch --nproc 1 --rdzv-id $SLURM_JOB_ID $SIMPLE --until go &
while ! [ -e environ-$SLURM_PROCID.json ]; do sleep 0.1; done
hpclaunch --nproc 1 true
echo "task $SLURM_PROCID: code $?"
wait
"""


def test_a_second_launch_under_the_same_name_is_refused(launch: Launch, tmp_path: Path) -> None:
    """The first launch continues. An id that equals the job's id has no effect."""
    (tmp_path / "another.sh").write_text(ANOTHER)
    job = launch(srun=f"SIMPLE={SIMPLE} srun bash another.sh", nodes=2)
    for task in range(2):
        job.says(f"task {task}: code 2")
    (tmp_path / "go").touch()
    ended = job.wait()
    assert ended.code == 0, str(ended)
    for host in ("n1", "n2"):
        text = f"on {host}: another hpclaunch is already agent "
        assert ended.output.count(text) == 1
    assert os.listdir(tmp_path / "hpclaunch-logs") == [f"{job.id}.0"]
    assert len(job.environments()) == 2
