"""Asking Slurm for another run of this job, or for none. Both are the last act of a launch."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Mapping

from ..shared import runs, slurm_steps
from ..shared.scontrol import shown

LIMIT = 30.0  # seconds; a controller that is busy takes its time
# What Slurm says of a job, and the option of sbatch that asks for it.
REQUESTS = {
    "JobName": "--job-name",
    "Account": "--account",
    "Partition": "--partition",
    "QOS": "--qos",
    "Reservation": "--reservation",
    "TimeLimit": "--time",
    "WorkDir": "--chdir",
    "StdOut": "--output",
    "StdErr": "--error",
    "Features": "--constraint",
}
# The same, where the script does not ask for such things itself: these would add up, or contradict.
RESOURCES = {
    r"(-G|--gpus[-= ]|--gres[= ])": {
        "TresPerNode": "--gres",
        "TresPerJob": "--gpus",
        "TresPerTask": "--gpus-per-task",
    },
    r"--mem(-per-[cg]pu)?[= ]": {"MinMemoryNode": "--mem", "MinMemoryCPU": "--mem-per-cpu"},
    r"(-c|--cpus-per-[tg])": {"CPUs/Task": "--cpus-per-task"},
    r"(-n|--ntasks)": {"NtasksPerN:B:S:C": "--ntasks-per-node", "NumTasks": "--ntasks"},
    r"(-s\b|--exclusive|--oversubscribe)": {"OverSubscribe": "--exclusive"},
}
FOREIGN = ("PMI", "SLURMD_")  # begin variables of the task, for MPI in it
NOTHING = ("", "(null)", "N/A", "*", "0")  # was asked for


class RefusedError(Exception):
    """Slurm does not do it; says why."""


class ForbiddenError(RefusedError):
    """This job may not be requeued at all."""


def is_possible() -> bool:
    """Whether this host has the command. Containers often lack it."""
    return shutil.which("scontrol") is not None


def name_of(job: str, environ: Mapping[str, str]) -> str:
    """How Slurm is to be told of this job: the id of an element may be that of its whole array."""
    array, task = (environ.get(f"SLURM_ARRAY_{n}", "") for n in ("JOB_ID", "TASK_ID"))
    return f"{array}_{task}" if array and task else job


def requeue(job: str, environ: Mapping[str, str]) -> None:
    """Have Slurm end this job and start it again. Raises RefusedError.

    If Slurm knows of more restarts than there were before this run, it was requeued already, by the
    script, by another launch of the job, or by an administrator.
    """
    if _was_requeued(shown("job", job), environ):
        return
    try:
        _run("scontrol", "requeue", job)
    except RefusedError as e:
        fields = shown("job", job)
        if _was_requeued(fields, environ):  # meanwhile
            return
        if fields.get("Requeue") == "0":
            raise ForbiddenError(str(e)) from e
        raise


def _was_requeued(fields: Mapping[str, str], environ: Mapping[str, str]) -> bool:
    restarts = fields.get("Restarts", "")
    return restarts.isdecimal() and int(restarts) > runs.restarts(environ)


def release_others(environ: Mapping[str, str]) -> None:
    """Have Slurm tell all agents of this step that they may leave."""
    step = f"{environ.get('SLURM_JOB_ID')}.{environ.get('SLURM_STEP_ID')}"
    if environ.get("SLURM_STEP_NUM_TASKS", "1") != "1":
        with contextlib.suppress(RefusedError):  # then they leave later
            _run("scancel", "--signal=TERM", step)


def resubmit(job: str, environ: Mapping[str, str]) -> tuple[str, bool]:
    """Submit the script of this job again, with its arguments and what was asked for on the command
    line of sbatch, as far as Slurm still tells. The new job waits for the end of this one. Returns
    its id, and whether it is new. Raises RefusedError.

    It waits for this one only, and not for all with its name (`singleton`): others of the user may
    have the same name. Of several launches in a job, each may ask, and the first one's is kept.
    """
    if "SLURM_HET_SIZE" in environ:
        raise RefusedError("it is a heterogeneous job")
    fields = _fields(_run("scontrol", "show", "job", "-o", job))
    name = fields["JobName"]
    if followers := _followers(job, name):
        return followers[0], False
    script = _run("scontrol", "write", "batch_script", environ["SLURM_JOB_ID"], "-")
    nodes = environ.get("SLURM_JOB_NUM_NODES", "")
    options = [*_requests(fields, script, nodes), "--open-mode=append"]
    options += [f"--dependency=afterany:{job}"]
    for variable, option in (
        ("SLURM_JOB_NUM_NODES", "--nodes"),  # Slurm itself counts those that are left
        ("SLURM_ARRAY_TASK_ID", "--array"),
        ("SLURM_EXPORT_ENV", "--export"),
    ):
        options += [f"{option}={environ[variable]}"] if environ.get(variable) else []
    words = fields["Command"].split()[1:]
    script_of = ["/dev/stdin", *words] if words else []
    kept = slurm_steps.environment(environ)
    env = {variable: kept[variable] for variable in kept if not variable.startswith(FOREIGN)}
    # With this prefix it is exported whatever --export says, of sbatch and of srun.
    env[runs.RESUBMITTED] = runs.told(environ)
    said = _run("sbatch", "--parsable", *options, *script_of, script=script, env=env)
    mine = said.partition(";")[0]
    first, *_ = _followers(job, name) or [mine]
    if first != mine:
        _run("scancel", mine)
    return first, first == mine


def _followers(job: str, name: str) -> list[str]:
    """The jobs with this name that wait for the end of this one, in the order of their ids."""
    which = (f"--user={os.geteuid()}", "--states=PENDING", "--format=%A %E %j")
    lines = (line.split(maxsplit=2) for line in _run("squeue", "-h", *which).splitlines())
    waiting = re.compile(rf"\bafterany:{job}(?![\d_])")
    known = (w for w in lines if len(w) == 3 and w[0].isdecimal())
    return sorted((w[0] for w in known if waiting.search(w[1]) and w[2] == name), key=int)


def _requests(fields: Mapping[str, str], script: str, nodes: str) -> list[str]:
    """What sbatch was asked for, as options. `fields` are what Slurm says of the job, which began
    with so many nodes.
    """
    options = dict(REQUESTS)
    for others, more in RESOURCES.items():
        options |= {} if re.search(rf"(?m)^#SBATCH\s.*?(?<=\s){others}", script) else more
    found = {option: fields[field] for field, option in options.items()}
    whole = {"NO": ["--exclusive"], "USER": ["--exclusive=user"]}.get(found.pop("--exclusive", ""))
    for option, pattern in (
        ("--gres", "gres[:/]"),
        ("--gpus", "gres[:/]gpu:"),
        ("--gpus-per-task", "gres[:/]gpu:"),
        ("--ntasks-per-node", ":.*"),
        ("--cpus-per-task", "^1$"),  # the default, which sets no variable
    ):
        found[option] = re.sub(pattern, "", found.get(option, ""))
    if found["--ntasks-per-node"] not in NOTHING or found.get("--ntasks") == nodes:  # the default
        found["--ntasks"] = ""
    asked = [f"{option}={text}" for option, text in found.items() if text not in NOTHING]
    return [*asked, *(whole or []), *(["--mem=0"] if found.get("--mem") == "0" else [])]


def _fields(told: str) -> dict[str, str]:
    """Those of a job that count here; "" for one that is not there. Some of their values have
    spaces in them, or look like other fields.
    """
    ends = {"JobName": "UserId=", "Command": "(?:SubmitLine|WorkDir)="}
    _, _, rest = told.partition(" UserId=")
    found = {}
    for name in (*REQUESTS, *(name for more in RESOURCES.values() for name in more), "Command"):
        end = ends.get(name, "[A-Z][\\w/:]*=")
        text = told if name == "JobName" else rest
        value = re.search(rf"(?:^| ){re.escape(name)}=(.*?)(?= {end}|\s*$)", text)
        found[name] = "" if value is None else value[1]
    return found


def cancel_rest(array: str) -> None:
    """Cancel the elements that have not begun. Raises RefusedError."""
    _run("scancel", "--state=PENDING", array)


def _run(*command: str, script: str = "", env: Mapping[str, str] | None = None) -> str:
    """What it says; `script` is its standard input. Raises RefusedError."""
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=LIMIT, input=os.fsencode(script), env=env
        )
    except OSError as e:
        raise RefusedError(f"{command[0]}: {e.strerror}") from e
    except subprocess.TimeoutExpired as e:
        raise RefusedError(f"{command[0]} did not end within {LIMIT:g} s") from e
    if done.returncode:
        why = " ".join(os.fsdecode(done.stderr).split())
        raise RefusedError(why or f"{command[0]} ended with {done.returncode}")
    return os.fsdecode(done.stdout).strip()
