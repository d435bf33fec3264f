"""How the script of a job is submitted again, and what its runs are called, with commands of Slurm
that are played."""

from __future__ import annotations

import re

import pytest

from hpclaunch.system.hosts import requeue
from hpclaunch.system.shared import runs

JOB = (
    "JobId=71 JobName=my Partition=x job UserId=me(1) Account=(null) QOS=normal JobState=RUNNING "
    "Restarts=0 TimeLimit=00:05:00 TimeMin=N/A Partition=gpu NumNodes=1 CPUs/Task=1 "
    "ReqB:S:C:T=0:0:*:* NtasksPerN:B:S:C=1:0:*:* CoreSpec=* MinMemoryNode=100M Features=(null) "
    "Command=/home/me/job.sh LR=0.1 two {}WorkDir=/home/me Comment=a comment  "
    "StdErr=/home/me/o-71.out StdIn=/dev/null StdOut=/home/me/o-71.out Power= "
    "TresPerNode=gres:gpu:a100:4"
)
SCRIPT = "#!/bin/bash\n#SBATCH --nodes=2{}\nsrun hpclaunch --resubmit train.py"
SCONTROL = '#!/bin/sh\n[ "$1" = show ] && echo "{}" || cat script\n'
SBATCH = """#!/bin/sh
for word; do echo "$word"; done > words
cat > submitted; env > environ
{}
"""
SQUEUE = "#!/bin/sh\n[ -e submitted ] && cat waiting-after || cat waiting-before\n"
SCANCEL = '#!/bin/sh\necho "$@" > cancelled\n'
NAME = "my Partition=x job"
OF_JOB = {"SLURM_JOB_ID": "71", "SLURM_JOB_NAME": NAME, "SLURM_JOB_NUM_NODES": "2"}
OTHERS = (
    "72 afterany:71(unfulfilled) another job",
    f"73 afterany:7,afterany:711(unfulfilled) {NAME}",
    f"74 (null) {NAME}",
)


@pytest.fixture
def slurm(starts, tmp_path, monkeypatch):
    """Writes the commands; returns what `sbatch` got: its options, and the rest."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def play(*, job="", script="", ends="echo '75;cluster'", before=(), after=(), **environ):
        (tmp_path / "script").write_text(SCRIPT.format(script))
        (tmp_path / "waiting-before").write_text("\n".join((*OTHERS, *before)))
        (tmp_path / "waiting-after").write_text("\n".join((*OTHERS, *before, *after)))
        commands = {
            "scontrol": SCONTROL.format(job or JOB.format("")),
            "sbatch": SBATCH.format(ends),
            "squeue": SQUEUE,
            "scancel": SCANCEL,
        }
        for name, text in commands.items():
            (tmp_path / name).write_text(text)
            (tmp_path / name).chmod(0o755)
        env = {"PATH": f"{tmp_path}:/usr/bin:/bin", **OF_JOB, **environ}
        follower, is_new = requeue.resubmit("71", env)
        assert is_new == (follower == "75")
        if not (tmp_path / "words").exists():
            return follower, None
        words = (tmp_path / "words").read_text().splitlines()
        options = dict(w[2:].partition("=")[::2] for w in words if w.startswith("--"))
        return follower, options

    return play


def lines(path):
    return path.read_text().splitlines()


def environ_of(tmp_path):
    return dict(line.split("=", 1) for line in lines(tmp_path / "environ") if "=" in line)


@pytest.mark.parametrize("newer", ["", "SubmitLine=sbatch --time=5 job.sh LR=0.1 two "])
def test_it_asks_for_the_same(slurm, tmp_path, newer):
    follower, options = slurm(job=JOB.format(newer))
    assert follower == "75"
    assert options == {
        "job-name": NAME,
        "qos": "normal",
        "partition": "gpu",
        "time": "00:05:00",
        "chdir": "/home/me",
        "output": "/home/me/o-71.out",
        "error": "/home/me/o-71.out",
        "gres": "gpu:a100:4",
        "mem": "100M",
        "ntasks-per-node": "1",
        "nodes": "2",
        "dependency": "afterany:71",
        "open-mode": "append",
        "parsable": "",
    }
    assert lines(tmp_path / "words")[-3:] == ["/dev/stdin", "LR=0.1", "two"]
    assert (tmp_path / "submitted").read_text() == SCRIPT.format("")


def test_what_the_script_asks_for_is_left_to_it(slurm):
    more = "\n#SBATCH --gpus-per-node=4 --mem-per-gpu=9G\n#SBATCH -n 2"
    _, options = slurm(script=more)
    assert options.keys().isdisjoint({"gres", "mem", "ntasks-per-node"})


@pytest.mark.parametrize(
    ("field", "option", "value"),
    [
        ("TresPerJob=gres:gpu:8", "gpus", "8"),
        ("TresPerTask=gres:gpu:1", "gpus-per-task", "1"),
        ("TresPerNode=gres/gpu:8", "gres", "gpu:8"),
        ("CPUs/Task=11", "cpus-per-task", "11"),
        ("NtasksPerN:B:S:C=0:0:*:1", "ntasks-per-node", None),
        ("NtasksPerN:B:S:C=2:0:1:1", "ntasks-per-node", "2"),
        ("NtasksPerN:B:S:C=*:0:*:*", "ntasks-per-node", None),
        ("NtasksPerN:B:S:C=0:0:*:* NumTasks=8", "ntasks", "8"),
        ("NtasksPerN:B:S:C=0:0:*:* NumTasks=2", "ntasks", None),  # the default for two nodes
        ("NumTasks=8", "ntasks", None),  # so many on each node
        ("OverSubscribe=NO", "exclusive", ""),
        ("OverSubscribe=USER", "exclusive", "user"),
        ("OverSubscribe=OK", "exclusive", None),
        ("MinMemoryNode=0", "mem", "0"),
    ],
)
def test_other_requests(slurm, field, option, value):
    job = JOB.format("")
    for name in re.findall(r"\S+(?==)", field):
        job = re.sub(rf"{name}=\S+ ?", "", job)
    job += f" {field}"
    _, options = slurm(job=job)
    assert options.get(option) == value


def test_without_arguments_and_of_an_element(slurm, tmp_path):
    job = re.sub(r"Command=.*? WorkDir", "Command=/home/me/job.sh WorkDir", JOB.format(""))
    _, options = slurm(job=job, SLURM_ARRAY_TASK_ID="3", SLURM_EXPORT_ENV="NONE")
    assert "/dev/stdin" not in lines(tmp_path / "words")
    assert options["array"] == "3"
    assert options["export"] == "NONE"


def test_it_is_told_which_run_it_is(slurm, tmp_path):
    slurm(A="1", PMIX_RANK="0", SLURM_NTASKS="9", SLURM_CONF="/etc/slurm.conf")
    env = environ_of(tmp_path)
    assert {n for n in env if n.startswith("SLURM")} == {"SLURM_CONF", runs.RESUBMITTED}
    assert env["A"] == "1"
    assert "PMIX_RANK" not in env
    second = env | {**OF_JOB, "SLURM_JOB_ID": "75"}
    assert (runs.first_job("75", second), runs.before(second)) == ("71", 1)
    third = second | {runs.RESUBMITTED: runs.told(second), "SLURM_JOB_ID": "80"}
    assert (runs.first_job("80", third), runs.before(third)) == ("71", 2)
    assert runs.before(third | {"SLURM_RESTART_COUNT": "4"}) == 6
    assert runs.first_job("75", second | {"SLURM_JOB_NAME": "another"}) == "75"
    assert runs.first_job("75", second | {runs.RESUBMITTED: "71 x"}) == "75"


def test_one_that_waits_already_is_enough(slurm, tmp_path):
    """Another launch of this job, or an earlier one of its script, has submitted it."""
    follower, options = slurm(before=[f"76 afterany:71(unfulfilled) {NAME}"])
    assert (follower, options) == ("76", None)


@pytest.mark.parametrize(("other", "kept"), [("70", "70"), ("99", "75")])
def test_of_two_that_come_at_once_the_first_is_kept(slurm, tmp_path, other, kept):
    both = [f"{job} afterany:71(unfulfilled) {NAME}" for job in (other, "75")]
    follower, _ = slurm(after=both)
    assert follower == kept
    assert (tmp_path / "cancelled").exists() == (kept != "75")


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"ends": "echo no such partition >&2; exit 1"}, "no such partition"),
        ({"ends": "exit 4"}, "sbatch ended with 4"),
        ({"SLURM_HET_SIZE": "2"}, "it is a heterogeneous job"),
    ],
)
def test_one_that_is_refused(slurm, how, why):
    with pytest.raises(requeue.RefusedError, match=why):
        slurm(**how)


@pytest.mark.starts
def test_without_slurms_commands(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(requeue.RefusedError, match="scontrol: No such file or directory"):
        requeue.resubmit("71", OF_JOB)
