"""The messages of the console: a text for each fact."""

from __future__ import annotations

import shlex

from ..core.head.last_lines import advise
from ..core.head.restarts import how
from ..core.protocol import facts
from ..core.protocol.job_state import JobState
from ..core.protocol.model import Failure, Leftover, Request
from ..core.protocol.wording import NAMES, count, plain, some, who
from .node_console import words_of_node

OWN_GPUS_ONLY = (
    "each worker sees only its own, as device 0: LOCAL_RANK is 0, and HPCLAUNCH_LOCAL_RANK is its "
    "number on the node"
)
GRANTED = {
    Request.RESTART: "hpclaunch restart: the workers start again from the newest checkpoint",
    Request.NOTICE: "hpclaunch notice: the workers will get notice before the same step",
}


class Console:
    """The console of one agent. It shows each piece of advice once."""

    def __init__(self) -> None:
        self._advised = {""}

    def lines(self, fact: facts.Fact) -> list[str]:
        """Return the messages of a fact. After a failure, they include advice."""
        found = messages(fact)
        return found + self._advice(fact.cause) if isinstance(fact, facts.RestartDecided) else found

    def _advice(self, cause: Failure) -> list[str]:
        """Return advice on a failure of the script, unless it was shown before."""
        advice = "" if cause.signal else advise(cause)
        if advice in self._advised:
            return []
        self._advised.add(advice)
        return [f"advice: {advice}"]


def messages(fact: facts.Fact) -> list[str]:
    """Return the messages of a fact without advice; most facts have one message."""
    match fact:
        # The rounds
        case facts.RoundBegan():
            return _round_began(fact)
        # What only reports and screens show
        case facts.RoundEnded() | facts.NodeArrived() | facts.SeatUse() | facts.NodesAllocated():
            return []
        case facts.CheckpointSaved() | facts.CheckpointGone() | facts.CheckpointStored():
            return []
        case facts.RestartDecided():
            return [_restart(fact)]
        case facts.RequestGranted(request=request):
            return [GRANTED[request]]
        case facts.NodesJoin(hosts=hosts):
            return [f"ending the round, to continue with {some(hosts, NAMES)}"]
        # The workers
        case facts.HangFound():
            return [_hang(fact)]
        case facts.StragglerNamed(host=host, rank=rank, seconds=seconds, pace=pace, why=why):
            waits = f"the others wait for it, {seconds:.2g} s of each step of {pace:.2g} s"
            first = f"{who(host, rank)} is a straggler: {waits}"
            return ["\n  ".join(filter(None, [first, why]))]
        case facts.StragglerRecovered(host=host, rank=rank):
            return [f"{who(host, rank)} is no longer a straggler"]
        case facts.LeftoversFound():
            return [_leftovers(fact)]
        case facts.WorkersSurvive(host=host, why=why):
            return [f"on {host}, {why}"]
        # The nodes
        case facts.NodesCordoned():
            return [] if fact.alone else [_cordoned(fact)]
        case facts.DrainFound(hosts=hosts):
            then = "once they have saved, the job continues with a spare"
            return [f"Slurm drains {some(hosts, NAMES)}: the workers are given notice, and {then}"]
        case facts.NodeLost(why=why):
            return [why]
        case facts.NodeCameBack(host=host):
            return [f"{host} is back"]
        case facts.NodeHeard(host=host):
            return [f"{host} is heard again"]
        case facts.NodesSilent(hosts=hosts, silent=silent, left=left):
            then = f"counts as lost in {left:.0f} s (--loss-timeout)"
            return [f"{some(hosts, NAMES)}: silent for {silent:.0f} s; {then}"]
        # The wait for a round
        case facts.AgentsAwaited(here=here, agents=agents, waited=waited, why=why):
            there = "; ".join(filter(None, [f"{here} of {agents} agents are here", why]))
            return [f"waiting for {some(fact.hosts, NAMES)} ({waited:.0f} s so far); {there}"]
        case facts.NodesAwaited(hosts=hosts, here=here, fewest=fewest, left=left):
            there = f"{here} of {fewest} nodes are here"
            return [f"waiting for {some(hosts, NAMES)}: {there}; {left:.0f} s more"]
        case facts.QuorumAwaited(hosts=hosts, left=left):
            names = some(hosts, NAMES)
            return [f"waiting for {names}: no quorum without them; {left:.0f} s more"]
        case facts.CheckpointSought(waited=waited):
            return [f"looking for a complete checkpoint ({waited:.0f} s so far)"]
        case facts.ReadersAwaited(hosts=hosts, path=path, waited=waited):
            return [f"waiting for {some(hosts, NAMES)} to see {path} ({waited:.0f} s so far)"]
        # The head
        case facts.HeadChanged(lost=lost, head=head):
            return [f"the head on {lost} was lost: {head} leads now"]
        case facts.HeadDeposed(host=host, head=head):
            them = f"with the agents that {host} could not reach"
            return [f"{host} no longer leads: {head} does, {them}"]
        case facts.HeadLeaves(host=host, why=why):
            return [f"the head on {host} leaves the job, and another takes over: {why}"]
        case facts.HeadAwaited(host=host, head=head, waited=waited, why=why):
            if not head:
                return [f"{host} was started again, and has waited {waited:.0f} s for a head"]
            known = f": {why}" if why else ""
            return [f"{host} has waited {waited:.0f} s for the head on {head}{known}"]
        case facts.HeadSilent(head=head, silent=silent, left=left):
            then = f"counts as lost in {left:.0f} s (--loss-timeout)"
            return [f"the head on {head}: it has been silent for {silent:.0f} s; {then}"]
        case facts.HeadHeard(head=head):
            return [f"the head on {head} is heard again"]
        case facts.ElectionAwaited(host=host, head=head, why=why, left=left):
            lost = f"the one on {head} was lost ({why})"
            rest = f"there is no majority for another; {left:.0f} s more"
            return [f"{host} waits for a head: {lost}, and {rest}"]
        # The end of the job
        case facts.JobEnded():
            return _job_ended(fact)
        case facts.EndAnnounced(state=state, left=left):
            how = "near its time limit" if state is JobState.RUNNING else state.value
            return [f"the job is {how}: it ends in {left:.0f} s"]
        case facts.NoticeGiven(step=step, state=state, left=left):
            is_limit = state is JobState.RUNNING
            what = "the time limit is" if is_limit else f"the job is {state.value}, and ends"
            where = f" before step {step:,}" if step else ""
            return [f"the workers are given notice{where}: {what} in {left:.0f} s"]
        case facts.RequeueImpossible(slurm_id=job):
            return [
                f"job {job} cannot be requeued, so --requeue has no effect: submit it with sbatch "
                "--requeue, or as a chain of jobs (hpclaunch sbatch --chain)"
            ]
        case _:
            return [words_of_node(fact)]


def words(fact: facts.Fact) -> str:
    """Return the message of a fact that has one."""
    (message,) = messages(fact)
    return message


# The rounds


def _round_began(fact: facts.RoundBegan) -> list[str]:
    lines = []
    if fact.layout:
        lines.append(f"the nodes have different numbers of workers: {fact.layout}")
    lines += map(_isolated, fact.isolated)
    if fact.came or fact.gone:
        change = [f"with {some(fact.came, NAMES)}"] if fact.came else []
        change += [f"without {some(fact.gone, NAMES)}"] if fact.gone else []
        lines.append(f"continuing {' and '.join(change)}: {count(fact.nodes, 'node')}")
    lines += [f"skipping checkpoint {plain(text)}" for text in fact.passed_over]
    if fact.checkpoint:
        rule = f" ({plain(fact.rule)})" if fact.rule else ""
        lines.append(f"resuming from {plain(fact.checkpoint)}{rule}")
    elif fact.begins > 1 or fact.lacking or fact.passed_over:
        lines += _no_checkpoint(fact)
    return lines


def _isolated(gpus: facts.IsolatedGpus) -> str:
    hosts = some(gpus.hosts, NAMES)
    if gpus.workers:
        shared = count(gpus.gpus, "GPU")
        return f"{gpus.workers} workers share {shared} on {hosts}; {OWN_GPUS_ONLY}"
    return f"GPUs on {hosts}: {OWN_GPUS_ONLY}"


def _no_checkpoint(fact: facts.RoundBegan) -> list[str]:
    """Return why the round begins without a checkpoint, and what to do about it."""
    if not fact.saves:
        if fact.begins > 2:
            return []
        hint = "--checkpoint-dir DIR gives it the newest one in HPCLAUNCH_CHECKPOINT"
        return [f"training begins again, unless the script finds its checkpoints itself ({hint})"]
    is_again = fact.begins > 1
    again = "training begins again from the start" if is_again else "training begins at the start"
    if fact.passed_over:
        why = "none can be used (hpclaunch checkpoints lists them)"
        return [f"{again}, unless the script finds a checkpoint itself: {why}"]
    why = plain(fact.lacking or "nothing has been saved in --checkpoint-dir yet")
    return [f"{again}, without a checkpoint: {why}"]


def _restart(fact: facts.RestartDecided) -> str:
    left = f"restart {fact.used} of {fact.most}"
    if fact.is_last:
        delay = max(fact.outage_delay, fact.node_delay)
        when = f" in {delay:.0f} s" if delay else ""
        left = f"the job ends{when}, unless a checkpoint was saved since the last start"
    elif fact.outage_delay > fact.node_delay:
        left += f", in {fact.outage_delay:.0f} s, so that the file system or network can recover"
    elif fact.node_delay:
        host = fact.cause.host
        left += f", in {fact.node_delay:.0f} s because {host} fails again and again"
    return f"{how(fact.cause)}; {left}"


# The workers


def _hang(fact: facts.HangFound) -> str:
    usual = f" (usual: {fact.usual:.1f} s)" if fact.usual else ""
    lines = [f"no step for {fact.still:.0f} s{usual}: the workers hang", *fact.account]
    lines.append(f"the stacks of all ranks: round-{fact.round}/evidence in the log directory")
    if fact.ends_in is not None:
        left = f"unless they make a step, the job ends in {fact.ends_in:.0f} s"
        lines.append(f"no restart is left: {left}")
    return "\n  ".join(lines)


def _leftovers(fact: facts.LeftoversFound) -> str:
    grace = f"{fact.grace:g} s (--grace)"
    what = {
        facts.LeftoverStep.WAIT: f"waiting up to {grace} for what the workers left behind",
        facts.LeftoverStep.END: f"ending what the workers left behind, after {grace}",
        facts.LeftoverStep.KILL: "killing what the workers left behind",
    }[fact.step]
    return f"{fact.host}: {what}: {some(map(_leftover, fact.leftovers), NAMES)}"


def _leftover(leftover: Leftover) -> str:
    rank = "" if leftover.rank is None else f"rank {leftover.rank}, "
    return f"{plain(leftover.program)} ({rank}pid {leftover.pid})"


# The nodes


def _cordoned(fact: facts.NodesCordoned) -> str:
    """Return the message; for an unfit node also a command for the administrator."""
    hosts = some(fact.hosts, NAMES)
    match fact.kind:
        case facts.CordonKind.FAILING:
            return f"{hosts} is cordoned: its workers have failed again, and there is a spare"
        case facts.CordonKind.SLOW:
            place = f"a spare takes the place of {hosts}"
            return f"ending the round: {place}, for whose workers the others wait"
        case facts.CordonKind.DRAINING:
            one = len(fact.hosts) == 1
            places = "a spare takes the place" if one else "spares take the places"
            return f"{places} of {hosts}, which Slurm drains"
        case facts.CordonKind.UNFIT:
            text = f"{hosts} is cordoned: {fact.why}"
            if fact.slurm_id:
                command = for_administrator(fact.hosts[0], fact.why, fact.slurm_id)
                text += f"\n  for the administrator: {command}"
            return text


def for_administrator(host: str, why: str, job: str) -> str:
    """Return a command to paste into a shell on the cluster. hpclaunch never runs the command: the
    administrator decides what happens to a node.
    """
    comment = " ".join(f"job {job}: {why}".split())
    return f"scontrol update NodeName={shlex.quote(host)} Comment={shlex.quote(comment)}"


# The end of the job


def _job_ended(fact: facts.JobEnded) -> list[str]:
    """Return a line for each node that was cordoned, at the end of a successful job."""
    if fact.verdict.code:
        return []
    return [
        f"the job has ended without {host}, which was cordoned: {why}" for host, why in fact.without
    ]
