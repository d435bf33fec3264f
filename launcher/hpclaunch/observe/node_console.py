"""The messages of the console on one node."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from ..core.protocol import node_facts as facts
from ..core.protocol.node_facts import LaunchNoteKind
from ..core.protocol.process_kinds import NAMES, ProcessKind
from ..core.protocol.wording import changed_too_early, count, plain, signal_name, size, some, who

NAMED = 3  # GPUs named in one message
LOST_WITH = {  # by process: what its end may mean for the user
    ProcessKind.LOGS: "lines may be missing here, and are in the files; the journal may have a gap",
    ProcessKind.GPUS: "check nvidia-smi on this host",
}
# Helpers that are not replaced at once after too many ends, but started for the next request.
ON_REQUEST = {ProcessKind.CHECKPOINTS, ProcessKind.STAGER, ProcessKind.GPUS, ProcessKind.MPS}
WITHOUT_MPS = (
    "without MPS, taking turns on the GPU: does the script change CUDA_VISIBLE_DEVICES or "
    "CUDA_MPS_PIPE_DIRECTORY?"
)

NOUNS = {"cores": "core", "cpus": "CPU", "nodes": "node", "spares": "spare", "tasks": "task"}
NOUNS |= {"workers": "worker"}  # numbers of these are written with the noun
LAUNCH_NOTES = {
    LaunchNoteKind.NODES: "--nnodes {asked}, but Slurm says {given}: using {given}",
    LaunchNoteKind.SPARES: "--nnodes {asked}: {spares} among the {nodes}",
    LaunchNoteKind.NO_KILL: "a node that Slurm finds down ends this step: add --no-kill to srun, "
    "and to sbatch",
    LaunchNoteKind.NODE_RANK: "--node-rank {asked} on {host}, but Slurm says {given}: using "
    "{given}",
    LaunchNoteKind.LOCAL_ADDR: "--local-addr {asked} is not an address of {host} that others "
    "reach: ignored",
    LaunchNoteKind.ENDPOINT: "{option} {asked} is not the first node of this step: using {host}",
    LaunchNoteKind.MACHINES: "--nnodes {asked}: waiting for {most} machines, later only for "
    "{fewest}",
    LaunchNoteKind.STANDALONE: "--standalone: each of the {tasks} of this step trains on its own",
    LaunchNoteKind.NO_VARIABLES: "the task of step {step} on {host} has none of Slurm's variables, "
    "so it trains without the other tasks: keep the variables (start the container without "
    "--cleanenv), or add --standalone",
    LaunchNoteKind.NPROC: "{tasks} on {host}, each with --nproc {nproc}: leave --nproc out for one "
    "worker per task",
    LaunchNoteKind.NO_GPU: "no GPU here: one worker for each of the {cpus} of this task",
    LaunchNoteKind.CPUS: "{workers} on {host} share {cpus}: ask Slurm for more with "
    "--cpus-per-task=N, on the #SBATCH line and on srun",
    LaunchNoteKind.CORES: "a worker has {cores}: its data loaders share it with the training, and "
    "the GPU waits. #SBATCH --cpus-per-task=N gives a task more (from Slurm 22.05 to 23.02 srun "
    "--cpus-per-task=N too)",
    LaunchNoteKind.PYTHON: "{command} before the script is not needed: hpclaunch starts the "
    "interpreter itself",
    LaunchNoteKind.TORCHRUN: "the Python of {torchrun} is not known: the workers use {python}, "
    "unless PYTHON_EXEC names another",
    LaunchNoteKind.LOGS_IN_USE: "the log directory {asked} is in use: this launch's is {directory}",
    LaunchNoteKind.LOGS_FOREIGN: "hpclaunch-logs belongs to another user: the logs are in "
    "{directory}",
    LaunchNoteKind.LOGS_TEMPORARY: "{why}: the logs of {host} are in {directory}",
}


def words_of_node(fact: facts.NodeFact) -> str:
    """Return the message of a fact."""
    match fact:
        case facts.LaunchNote():
            return words_of_launch(fact)
        # The processes beside the agent
        case facts.HelperEnded():
            return _helper_ended(fact)
        case facts.CheckpointSearchStalled(host=host, where=where):
            silent = f"the process that searches for checkpoints on {host} does not answer"
            return f"{silent} and is replaced: does the file system of {where} answer?"
        case facts.CheckpointDirSuggested(where=where, path=path):
            option = f"--checkpoint-dir {shlex.quote(where)}"
            newest = "would give all workers the newest checkpoint at every start"
            return f"the script has saved {path} itself: {option} {newest}"
        case facts.CheckpointUnused(path=path, saved=saved):
            saves = f"the script saves {plain(saved)} now"
            hint = "does it load what HPCLAUNCH_CHECKPOINT names? (see --resume-with)"
            return f"{saves}, although it was to resume from {plain(path)}: {hint}"
        # Checkpoints in memory
        case facts.StageBegan():
            return _stage_began(fact)
        case facts.StageDeleted(host=host, directory=directory):
            return f"--stage: another program has deleted {directory} on {host}; it is made again"
        case facts.StageFetched(size=total, seconds=seconds):
            took = f"in {seconds:.1f} s"
            return f"--stage: nodes have fetched {size(total)} from the memory of others {took}"
        case facts.StageRefused(where=where, why=why, later=later):
            when = "from the next round on, " if later else ""
            return f"--stage: {when}the script saves to {plain(where)} itself: {plain(why)}"
        case facts.StoringFailed(path=path, why=why):
            return f"{plain(path)} was not copied to storage: {plain(why)}; it is tried again"
        case facts.StageAwaited(is_restore=True, where=where, waited=waited):
            what = f"the process that copies checkpoints of {plain(where)} into memory"
            return f"waiting for {what} ({waited:.0f} s so far)"
        case facts.StageAwaited(where=where, path=path, done=done, size=total, waited=waited):
            copied = f": {size(done)} of {size(total)} of {plain(path)}" if path else ""
            so_far = f"{waited:.0f} s so far; Ctrl-C ends the wait, and what is not copied is lost"
            return f"waiting until everything is copied to {plain(where)} ({so_far}){copied}"
        case facts.StageLost(missing=missing, why=why):
            names = some(map(plain, missing), NAMED)
            return f"lost with the end of the job, not copied to storage: {names}: {plain(why)}"
        case facts.LogTrouble():
            return _log_trouble(fact)
        # The start of workers
        case facts.OutputMoved(host=host, round=number, directory=directory, why=why):
            return f"the output of round {number} is in {directory} on {host}: {why}"
        case facts.TemplateReplaced(host=host, why=why):
            return f"the template process on {host} ended ({why}) and was replaced"
        case facts.ColdStart(why=why):
            return f"cold start: {why}"
        case facts.WorkerTurnedCold():
            return _turned_cold(fact)
        case facts.PreloadSkipped(module=module, why=why):
            return f"--preload {module}: skipped, {why}"
        case facts.SignalUnhandled(signal=signum, ranks=ranks):
            passed_on = f"{signal_name(signum)} not passed on to {_ranks(ranks)}"
            return f"{passed_on}: the script has no handler for it"
        # The health of the node
        case facts.HealthWarning(host=host, check=check, found=found, advice=advice):
            todo = f" ({advice})" if advice else ""
            return f"on {host}: {check}: {found}{todo}"
        case facts.XidReported(host=host, rank=rank, gpu=gpu, xid=xid, why=why):
            return f"{who(host, rank)}: Xid {xid} on {gpu}: {why}"
        # What others see of the job
        case facts.MetricsFailed(host=host, target=target, why=why):
            return f"no metrics of {host} for now: {plain(target)}: {why}"
        case facts.NotifyFailed():
            return f"the command of --notify {plain(_notify_trouble(fact))}"
        # The network
        case facts.PortTaken(host=host, wanted=wanted, port=port):
            return f"port {wanted} is in use on {host}: hpclaunch listens on {port}"
        case facts.MessageIgnored(address=address, why=why):
            return f"ignored from {address}: {why}"
        # MPS
        case facts.MpsStarted(host=host, gpus=gpus):
            names = ", ".join(" and ".join(each) for each in gpus)
            return f"on {host}: MPS runs for {names}; --mps off does without"
        case facts.ForeignMpsAwaited(host=host, why=why):
            return f"on {host}: {why}: waiting for it"
        case facts.MpsBypassed(host=host, ranks=ranks):
            return f"{_ranks(ranks)} on {host} {'runs' if len(ranks) == 1 else 'run'} {WITHOUT_MPS}"
        case _:
            return f"on {fact.host}: {words_of_mps(fact)}"


def words_of_launch(note: facts.LaunchNote) -> str:
    """Return the message of a note on the command line."""
    if note.kind is LaunchNoteKind.WITHOUT_EFFECT:
        options = (f"{option} ({why})" if why else option for option, why in note.details.items())
        return f"without effect here: {'; '.join(options)}"
    written = {
        name: count(number, NOUNS[name]) if isinstance(number, int) and name in NOUNS else number
        for name, number in note.details.items()
    }
    return LAUNCH_NOTES[note.kind].format(host=note.host, **written)


def words_of_mps(note: facts.MpsNote) -> str:
    """Return the message without the host."""
    match note:
        case facts.TimeSlices(gpus=gpus, why=why, advice=advice):
            todo = f". {advice}" if advice else ""
            return f"{some(gpus, NAMED)}: shared by time slices, without MPS: {why}{todo}"
        case facts.ForeignMpsUsed(directory=directory):
            where = f"the daemon at {directory} is used"
            return f"MPS: {where}, which hpclaunch did not start and leaves running"
        case facts.ForeignMpsRefused(why=why):
            return why


def words_of_another_run(fact: facts.AnotherRun) -> str:
    match fact.kind:
        case facts.AnotherRunKind.LINGERS:
            return f"job {fact.job} waits for its preemption, to be started again by Slurm"
        case facts.AnotherRunKind.BY_SCRIPT:
            return f"job {fact.job} is to be requeued by its script: there is no scontrol here"
        case facts.AnotherRunKind.FOLLOWS:
            return f"job {fact.job} is requeued: run {fact.run} follows"
        case facts.AnotherRunKind.REFUSED:
            return f"job {fact.job} was not requeued: {fact.why}"
        case facts.AnotherRunKind.CHAIN_STAYS:
            return f"the rest of array {fact.job} was not cancelled: {fact.why}"


def _helper_ended(fact: facts.HelperEnded) -> str:
    how = "was killed" if fact.was_killed else "failed"
    if fact.is_replaced:
        how += " and replaced" if fact.was_killed else " and was replaced"
    elif fact.kind in ON_REQUEST:
        how += " again and again, and now starts only when it is needed"
    else:
        how += " again and again, and is not replaced"
    lost = f": {LOST_WITH[fact.kind]}" if fact.kind in LOST_WITH else ""
    return f"the {NAMES[fact.kind]} on {fact.host} {how}{lost}"


def _stage_began(fact: facts.StageBegan) -> str:
    where, directory = plain(fact.where), plain(fact.directory)
    if fact.words:
        copied = f"each checkpoint is copied to {where}"
        words = some(map(plain, fact.words), NAMED)
        return f"--stage: the script saves in {directory}; {copied}; arguments changed: {words}"
    return (
        f"--stage: no argument of the script names {where}: it has to save in HPCLAUNCH_STAGE, "
        f"which is {directory}; otherwise omit --stage"
    )


def _log_trouble(fact: facts.LogTrouble) -> str:
    match fact.kind:
        case facts.LogTroubleKind.FILES:
            return f"on {fact.host}: cannot write {fact.what}: {fact.why}"
        case facts.LogTroubleKind.DISK:
            full = "the disk is full, and what workers write is lost"
            return f"on {fact.host}: {full}: {fact.what}"
        case facts.LogTroubleKind.DUPLICATES:
            return f"on {fact.host}: lines are no longer duplicated to {fact.what}: {fact.why}"
        case facts.LogTroubleKind.STALLED:
            what = "1 message" if fact.what == "1" else f"{fact.what} messages"
            lost = f"{what} of the launcher {'is' if fact.what == '1' else 'are'} lost"
            return f"on {fact.host}: {lost}: the log directory has stalled"


def _ranks(ranks: Sequence[int]) -> str:
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks))}"


def _turned_cold(fact: facts.WorkerTurnedCold) -> str:
    reason = changed_too_early(fact.file, fact.name, fact.line)
    if fact.cause is facts.ColdCause.MODULE:
        module = f"another module {fact.name} than hpclaunch has loaded"
        reason = f"line {fact.line} of {fact.file} imports {module}"
    if fact.is_impossible:
        return f"warning: {reason}, in a process that a worker has forked: start with --cold"
    return f"cold start: {reason}"


def _notify_trouble(fact: facts.NotifyFailed) -> str:
    match fact.trouble:
        case facts.NotifyTrouble.FAILED:
            return fact.why
        case facts.NotifyTrouble.INTERRUPTED:
            return "was interrupted: an event may be lost"
        case facts.NotifyTrouble.UNFINISHED:
            return f"took longer than {fact.limit:g} s at the end of the job"
        case facts.NotifyTrouble.SLOW:
            return f"was too slow for {count(fact.dropped, 'event')}"
