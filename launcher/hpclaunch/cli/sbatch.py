"""Print a job script that launches a training, or submit it.

    hpclaunch sbatch --profile narval --account def-you --nodes 2 train.py
    hpclaunch sbatch --gpus-per-node 4 --submit -- --checkpoint-dir d train.py

You may write options of the launcher between these options, or after --. They,
SCRIPT and its arguments are copied into the job script (docs/slurm.md).
"""

from __future__ import annotations

import argparse
import math
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hpclaunch.core.protocol.errors import UsageError
from hpclaunch.core.protocol.model import EndKind
from hpclaunch.core.protocol.wording import harmless

from . import job_script, options, parser, profiles, program, slurm_values, values, write_bytes
from . import run as launching
from .job_script import JobScript
from .profiles import GpuProfile, Profile

# Slurm's short options that are not the launcher's, and how to write them here.
SHORT = {"-A": "--account", "-N": "--nodes", "-c": "--cpus-per-task", "-p": "--partition"}
OF_SLURM = ": for another option of Slurm's, add an #SBATCH line to the printed script"
USAGE = "%(prog)s [options] [--] [launcher options] SCRIPT [arguments]"


class PARSER(parser.Parser):
    """A parser that puts the launcher's options, SCRIPT and its arguments into `words`."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(usage=USAGE, allow_abbrev=False, **settings)

    def parse_args(self, args: Sequence[str]) -> argparse.Namespace:  # type: ignore[override]
        own, theirs = self._divide([*args])
        namespace = super().parse_args(own)
        namespace.words = theirs
        return namespace

    def _divide(self, words: list[str]) -> tuple[list[str], list[str]]:
        launcher = options.build_parser({})
        own: list[str] = []
        theirs: list[str] = []
        while words and words[0].startswith("-") and words[0] not in ("-", "--"):
            name, equals, value = words[0].partition("=")
            action = self.options.get(name.replace("_", "-"))
            if action is not None:
                words = words[1:]
                if action.nargs is None and not equals and words:
                    equals, value, words = "=", words[0], words[1:]
                own.append(action.option_strings[0] + equals + value)
            elif instead := SHORT.get(name[:2]):
                self.error(f"no option {name[:2]}: write {instead}")
            elif launcher.knows(words[0]):
                rest = list(words)
                launcher.take(rest)
                theirs += words[: len(words) - len(rest)]
                words = rest
            else:
                # An abbreviation such as --node could mean an option of either parser.
                known = {**self.options, **launcher.options}
                self.no_option(name, known, ", here or of the launcher", OF_SLURM)
        return own, theirs + (words[1:] if words[:1] == ["--"] else words)


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--profile",
        metavar="SITE|FILE",
        help=f"what the site needs: {', '.join(profiles.known())}, or a TOML file of your own",
    )
    _add_requests(add)
    _add_endings(add)
    _add_surroundings(add)
    add("--submit", action="store_true", help="submit the script, and print only the id of the job")
    add("--interactive", action="store_true", help="print what to type for salloc, line by line")


def _add_requests(add: Callable[..., object]) -> None:
    """Add options for the resources of the job."""
    add(
        "--account",
        type=slurm_values.word,
        metavar="NAME",
        help="the account that pays for the job",
    )
    add(
        "--partition",
        type=slurm_values.word,
        metavar="NAME",
        help="the partition (default: the site's for GPUs)",
    )
    add(
        "--nodes",
        type=values.integer(1),
        metavar="N",
        help="number of nodes (default: MAX of the launcher's --nnodes, otherwise 1)",
    )
    add(
        "--gpus-per-node",
        type=slurm_values.gpus,
        metavar="[TYPE:]N",
        help="such as 4 or a100:4 (default: all GPUs of a node of the site, or none without a "
        "profile)",
    )
    add(
        "--time",
        type=slurm_values.limit,
        default="1:00:00",
        help="time limit: minutes, hours:minutes:seconds, days-hours, ... (default: %(default)s)",
    )
    add(
        "--cpus-per-task",
        type=values.integer(1),
        metavar="N",
        help="CPUs for all workers of a node together (default: the site's number for each GPU)",
    )
    add(
        "--mem",
        type=slurm_values.capacity,
        metavar="SIZE",
        help="memory of a node, such as 64G; 0: all of it (default: the site's for each GPU)",
    )


def _add_endings(add: Callable[..., object]) -> None:
    """Add options for the time limit, preemption, and further runs."""
    add(
        "--signal",
        type=slurm_values.warning,
        metavar="NAME@SECONDS",
        help="USR1@120: 120 s before the time limit the workers get SIGUSR1 and keep running; "
        "TERM@120: the job ends in order then; with --requeue or --chain this has no effect in the "
        "last 20 minutes, since the workers get notice anyway",
    )
    add(
        "--requeue",
        action="store_true",
        help="Slurm may start the job again after preemption; with --checkpoint-dir, the launcher "
        "also asks for it at the end of the time limit",
    )
    add(
        "--chain",
        type=slurm_values.hours,
        metavar="HOURS",
        help="for a training that takes longer than --time: an array of jobs, one after another, "
        "of HOURS in total; each continues from the newest checkpoint (needs --checkpoint-dir)",
    )


def _add_surroundings(add: Callable[..., object]) -> None:
    """Add options for the environment of the launcher."""
    add("--modules", metavar="NAMES", help="modules to load instead of the site's; '': none")
    add("--venv", metavar="DIR", help="a virtual environment, or one of conda, to activate")
    add("--apptainer", metavar="IMAGE", help="launch inside this container")
    add("--pyxis", metavar="IMAGE", help="the same, where Slurm has the Pyxis plugin")


def run(chosen: argparse.Namespace, environ: Mapping[str, str]) -> int:
    for one, other in (
        ("submit", "interactive"),
        ("requeue", "interactive"),
        ("chain", "interactive"),
        ("chain", "requeue"),
        ("apptainer", "pyxis"),
        ("venv", "apptainer"),
        ("venv", "pyxis"),
    ):
        if getattr(chosen, one) and getattr(chosen, other):
            raise UsageError(f"--{one} and --{other} contradict each other")
    profile = profiles.load(chosen.profile) if chosen.profile else Profile()
    job = _job(chosen, profile, *_launch(chosen, environ))
    if chosen.submit:
        text = _submit(job_script.script(job), environ) + "\n"
    else:
        text = job_script.interactive(job) if chosen.interactive else job_script.script(job)
    write_bytes([os.fsencode(text)])  # arguments may be in any encoding
    return 0


def _launch(
    chosen: argparse.Namespace, environ: Mapping[str, str]
) -> tuple[list[str], argparse.Namespace]:
    """Return the launcher's words in the job script, and their values, which are checked now rather
    than in the job.
    """
    words: list[str] = chosen.words
    launch = options.build_parser(environ).parse_args(words)
    if continued := _continued(chosen, launch):
        words = [continued, *words]
        launch = options.build_parser(environ).parse_args(words)
    launching.check_directory()
    launching.check(launch)
    if program.is_on_stdin(launch):
        raise UsageError("a job script has no standard input: write SCRIPT to a file")
    in_path = launch.no_python and "/" not in launch.training_script  # a module may provide it
    if not (chosen.apptainer or chosen.pyxis or in_path):
        program.program(launch, environ)
    return words, launch


def _job(
    chosen: argparse.Namespace, profile: Profile, words: list[str], launch: argparse.Namespace
) -> JobScript:
    site = os.path.basename(chosen.profile or "").removesuffix(".toml")
    if profile.account and not chosen.account:
        raise UsageError(f"jobs on {site} need an account: --account NAME")
    fewest, most = launch.nnodes or (0, 1)
    nodes = chosen.nodes or most
    if fewest > nodes:
        raise UsageError(f"--nodes {nodes}, but --nnodes wants {fewest} at least")
    launching.check_stage_on(launch, nodes, nodes)
    count, kind = _gpus(chosen, profile, site)
    if not chosen.partition and 0 < profile.most_gpus < nodes * count:
        raise UsageError(
            f"{nodes} x {count} GPUs: a job in {profile.partition} of {site} has at most "
            f"{profile.most_gpus}; name another --partition"
        )
    share = []
    cpus, memory = chosen.cpus_per_task or 0, chosen.mem or ""
    if not cpus and count * kind.cpus:
        cpus = count * kind.cpus
        share.append(f"{kind.cpus} CPUs")
    if not memory and count and profile.memory_per_gpu:
        memory = f"{count * int(profile.memory_per_gpu[:-1])}{profile.memory_per_gpu[-1]}"
        share.append(profile.memory_per_gpu)
    continues = bool(launching.another_run(launch))
    return JobScript(
        name=job_script.name_of(launch.training_script),
        time=chosen.time,
        nodes=nodes,
        command=words,
        account=chosen.account or "",
        partition=chosen.partition or profile.partition,
        gpus=_request(profile, site, count, kind),
        cpus=cpus,
        memory=memory,
        share=f"{' and '.join(share)} for each GPU" if share else "",
        elastic=0 < fewest < nodes,
        signal=chosen.signal or "",
        continues=continues and EndKind.TIME_LIMIT in launching.ends_before(launch),
        requeue=chosen.requeue or launch.requeue,
        launcher_requeues=launch.requeue,
        elements=_elements(chosen),
        setup=_setup(chosen, profile),
        image=chosen.apptainer or "",
        pyxis=chosen.pyxis or "",
    )


def _continued(chosen: argparse.Namespace, launch: argparse.Namespace) -> str:
    """Return the option with which the launcher continues in another run, or ""."""
    if (chosen.chain and launch.requeue) or (chosen.requeue and launch.chain):
        raise UsageError("--chain and --requeue contradict each other: a chain is one of jobs")
    if chosen.interactive and launch.requeue:
        raise UsageError("--requeue and --interactive contradict each other")
    if chosen.chain and launch.checkpoint_dir is None:
        raise UsageError("--chain needs --checkpoint-dir, to know where the script saves")
    if chosen.chain:
        return "--chain"
    wanted = chosen.requeue and launch.checkpoint_dir is not None and not launch.requeue
    return "--requeue" if wanted else ""


def _elements(chosen: argparse.Namespace) -> int:
    """Return how many jobs a chain has, or 0 without one."""
    if not chosen.chain:
        return 0
    each = slurm_values.seconds(chosen.time)
    if not each:
        raise UsageError("--chain needs a --time limit, which is the length of each job")
    hours: float = chosen.chain
    return math.ceil(hours * 3600 / each)


def _gpus(chosen: argparse.Namespace, profile: Profile, site: str) -> tuple[int, GpuProfile]:
    """Return how many GPUs each node has, and of which type."""
    if chosen.gpus_per_node is None and not profile.gpu:
        return 0, GpuProfile(per_node=1)
    if chosen.gpus_per_node is None:
        return profile.gpu[0].per_node, profile.gpu[0]
    type_, count = chosen.gpus_per_node
    if not profile.gpu:
        return count, GpuProfile(per_node=count, type=type_)
    kinds = [kind for kind in profile.gpu if not type_ or kind.type in ("", type_)]
    if not kinds:
        there = ", ".join(kind.type for kind in profile.gpu)
        raise UsageError(f"--gpus-per-node {type_}:{count}: {site} has {there}")
    fitting = [kind for kind in kinds if count <= kind.per_node]
    if not fitting:
        most = max(kind.per_node for kind in kinds)
        raise UsageError(
            f"--gpus-per-node {count}: a node of {site} has at most {most}; use more --nodes"
        )
    kind = fitting[0]
    return count, GpuProfile(per_node=kind.per_node, type=kind.type or type_, cpus=kind.cpus)


def _request(profile: Profile, site: str, count: int, kind: GpuProfile) -> tuple[str, str]:
    """Return Slurm's option for the GPUs, and a comment."""
    if not count:
        return "", ""
    asked = profile.gpus.replace("{gpus}", f"{kind.type}:{count}" if kind.type else str(count))
    if not profile.gpu:
        return asked, "or --gres=gpu:..., as the site has it"
    return asked, f"a node of {site} has {kind.per_node}"


def _setup(chosen: argparse.Namespace, profile: Profile) -> list[str]:
    """Return the lines before the launch: modules, and the environment with hpclaunch."""
    inside = chosen.apptainer or chosen.pyxis
    modules: Sequence[str] = () if inside else profile.modules
    if chosen.modules is not None:
        modules = chosen.modules.replace(",", " ").split()
    lines = [f"module load {shlex.join(modules)}"] if modules else []
    if chosen.venv is None:
        return lines if inside else [*lines, *profile.environment]
    if profile.activate == Profile().activate and not os.path.exists(f"{chosen.venv}/bin/activate"):
        why = "no virtual environment, it has no bin/activate"
        if os.path.isdir(f"{chosen.venv}/conda-meta"):
            why = "an environment of conda, for which the site's profile has no `activate`"
        raise UsageError(f"--venv {chosen.venv}: {why}")
    return [*lines, profile.activate.replace("{venv}", shlex.quote(chosen.venv))]


def _submit(text: str, environ: Mapping[str, str]) -> str:
    """Submit a job script. Return the id of the job."""
    # In a job that was started again, the new job would inherit this and count as started again.
    env = {name: value for name, value in environ.items() if name != "SLURM_RESTART_COUNT"}
    try:
        done = subprocess.run(
            ["sbatch", "--parsable"], input=os.fsencode(text), capture_output=True, env=env
        )
    except OSError as e:
        raise UsageError(
            f"cannot start sbatch ({e.strerror}): use --submit where jobs are submitted, or submit "
            "the printed script there"
        ) from e
    said = " ".join(os.fsdecode(done.stderr).split())
    if done.returncode:
        raise UsageError(f"sbatch did not take the job: {said.removeprefix('sbatch: error: ')}")
    if said:
        print(harmless(said), file=sys.stderr)
    return os.fsdecode(done.stdout).strip().partition(";")[0]
