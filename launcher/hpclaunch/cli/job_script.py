"""The text of a job script for sbatch, or of the lines to type for salloc."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from hpclaunch.core.protocol.model import EXIT_SAVED
from hpclaunch.core.protocol.values import value

COMMENTS = 41  # the column of comments
TO_THE_WORKERS = ("USR1", "USR2")
# In the last element of an array, SLURM_JOB_ID is the id of the whole array. A job that an element
# has submitted inherits the element's variables. The lines of `setup` may contain `set -u`.
ELEMENT = '$([ "${SLURM_ARRAY_JOB_ID-}" != $SLURM_JOB_ID ] || echo _$SLURM_ARRAY_TASK_ID)'
THIS_JOB = f"$SLURM_JOB_ID{ELEMENT}"


@value(frozen=True)
class JobScript:
    name: str
    time: str
    nodes: int
    command: Sequence[str]  # the launcher's options, the script, and the script's arguments
    account: str = ""
    partition: str = ""
    gpus: tuple[str, str] = ("", "")  # an option of Slurm's, and a comment on it
    cpus: int = 0  # of a task; 0: Slurm's default
    memory: str = ""  # of a node
    share: str = ""  # a comment: CPUs and memory per GPU
    elastic: bool = False  # continues without lost nodes
    signal: str = ""
    continues: bool = False  # another run follows the time limit
    requeue: bool = False
    launcher_requeues: bool = False  # if it is in a container, the script has to do it
    elements: int = 0  # jobs of an array, one after another
    setup: Sequence[str] = ()  # lines of shell before the launch
    image: str = ""  # of Apptainer
    pyxis: str = ""  # an image for Slurm's own plugin


def script(job: JobScript) -> str:
    return _lines(["#!/bin/bash", *(_directive(*r) for r in _requests(job)), *_shell(job)])


def interactive(job: JobScript) -> str:
    asked = " ".join(options for options, _ in _requests(job))
    return _lines([f"salloc {asked}", "# and in the shell that it opens:", *_shell(job)])


def name_of(script: str) -> str:
    """Return a job name for a script."""
    return re.sub(r"[^\w.-]+", "_", script.rpartition("/")[2].removesuffix(".py")) or "job"


def _lines(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _directive(options: str, comment: str) -> str:
    line = f"#SBATCH {options}"
    return f"{line:<{COMMENTS}} # {comment}" if comment else line


def _requests(job: JobScript) -> list[tuple[str, str]]:
    """Return lines of options for sbatch and salloc, each with a comment or ""."""
    where = [f"--account={job.account}"] * bool(job.account)
    where += [f"--partition={job.partition}"] * bool(job.partition)
    share = [f"--cpus-per-task={job.cpus}"] * bool(job.cpus)
    share += [f"--mem={job.memory}"] * bool(job.memory)
    lines = [
        (f"--job-name={job.name} --time={job.time}", ""),
        (" ".join(where), ""),
        (f"--nodes={job.nodes} --ntasks-per-node=1", "one launcher on each"),
        job.gpus,
        (" ".join(share), job.share),
        ("--no-kill" * job.elastic, "a lost node ends the job otherwise"),
        (f"--signal={job.signal}" * bool(job.signal), _effect_of_signal(job)),
        ("--requeue --open-mode=append" * job.requeue, "later runs append to the same output"),
        (f"--array=1-{job.elements}%1" * bool(job.elements), "each continues the last one"),
    ]
    return [line for line in lines if line[0]]


def _effect_of_signal(job: JobScript) -> str:
    if job.signal.startswith(TO_THE_WORKERS):
        return "to the workers, which keep running"
    if job.signal.startswith("TERM") and job.continues:
        return "no effect in the last 20 minutes: the workers get notice anyway"
    return "ends the job in order"


def _shell(job: JobScript) -> list[str]:
    step = ["srun"]
    # The last two options: a killed launcher must not end the others, whatever the site's defaults.
    step += ["--no-kill --kill-on-bad-exit=0 --wait=0"] * job.elastic
    step += ["-c $SLURM_CPUS_PER_TASK"] * bool(job.cpus)  # srun of Slurm 22.05 to 23.02 needs it
    if job.pyxis:
        step += [f"--container-image={shlex.quote(job.pyxis)}", "--container-mount-home"]
        step += ['--container-mounts="$PWD"', '--container-workdir="$PWD"']
    if job.image:
        step += ["apptainer exec --nv", shlex.quote(job.image)]
    lines = [*job.setup, " ".join([*step, "hpclaunch", shlex.join(job.command)])]
    follows, last = f"[ $code = {EXIT_SAVED} ]", ""
    if job.launcher_requeues:
        last = f"{follows} && scontrol requeue {THIS_JOB}"
    elif job.elements:
        last = f"{follows} || scancel --state=PENDING $SLURM_ARRAY_JOB_ID"
    if last and (job.image or job.pyxis):  # a launcher in a container has no commands of Slurm's
        lines += ["code=$?", last, "exit $code"]
    return lines
