"""One round, from its beginning until none of its workers is left."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ..placement.assigning import assign
from ..protocol.events import CheckpointChosen
from ..protocol.facts import EndReason, IsolatedGpus, LostNode, RoundBegan, RoundEnded, RoundShares
from ..protocol.messages import Report
from ..protocol.model import NO_RANK, Assignment, Culprit, Failure, Spent
from ..protocol.stages import Stage
from ..protocol.values import field, value
from ..protocol.wording import NAMES, some
from . import restarts
from .roster import Peer, hosts_of
from .round_shares import RoundPart, together

if TYPE_CHECKING:
    from .head_state import HeadState

IN_ROUND = (Stage.RUNNING, Stage.STOPPING)  # the stages in which a round may have workers
MOST_FAILURES = 9  # failures that a fact lists, including the cause
MOST_LOST = 8  # lost nodes that a fact lists
STEPS_KEPT, STEPS_APART = 13, 5.0  # step counts, and seconds between two of them


@value()
class Round:
    number: int
    participants: list[Peer]  # the agents that have workers in it
    groups: list[int]  # their nodes in the order of their ranks
    seats: list[float]  # the seats of each agent of the job when the round began
    begun: float  # when it began
    resumed: str  # the checkpoint that it resumed from; "" for none
    failures: dict[int, Failure] = field(default_factory=dict)  # by rank
    ends: set[EndReason] = field(default_factory=set)
    # By node: why it was lost or cordoned first. It stays here if it comes back.
    lost: dict[int, LostNode] = field(default_factory=dict)
    still_since: float = math.inf  # since when there is no sign of life; inf: not all are suspected
    stopped_at: float = math.inf  # when the head ended it
    cut: float = math.inf  # when the cause of its end happened, as far as known at `stopped_at`
    missed: float = 0.0  # seconds of it in which the head's process did not run
    # The time and the number of steps of the agent of rank 0, over the last minute.
    steps: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=STEPS_KEPT))
    newest_step: int = 0  # in the last report of that agent

    def note(self, peer: Peer, report: Report, now: float) -> None:
        """Note the failures and the pace in an agent's report on this round."""
        part, progress = peer.assignment, report.progress
        is_first = part is not None and part.first_rank == 0
        if is_first and progress is not None and any(progress.steps):
            self._note_step(max(progress.steps), now)
        for e in report.exits:
            if restarts.failed(e) and e.rank not in self.failures:
                self.failures[e.rank] = restarts.failure(e, report.round, peer.host, now)

    def _note_step(self, step: int, now: float) -> None:
        """Note how many steps were made. A report may repeat the number of an earlier one, since
        agents read it every few seconds, so a number that was just read is preferred.
        """
        is_new, self.newest_step = step != self.newest_step, step
        apart = STEPS_APART if is_new else 2 * STEPS_APART
        if not self.steps or now >= self.steps[-1][0] + apart:
            self.steps.append((now, step))

    @property
    def has_failed(self) -> bool:
        """Whether a worker or the store has failed while nobody was stopping it."""
        return any(not f.stopped for f in self.failures.values())

    @property
    def has_ended_well(self) -> bool:
        """Whether all workers have ended with 0. They may have left processes behind."""
        ended = all(peer.workers_have_ended_well(self.number) for peer in self.participants)
        return ended and not self.failures

    @property
    def pace(self) -> float | None:
        """Seconds per step, over the last minute; None if that is not known."""
        if len(self.steps) < 2:
            return None
        (since, first), (until, last) = self.steps[0], self.steps[-1]
        return (until - since) / (last - first) if last > first else None

    def hosts(self) -> dict[int, str]:
        return {rank: peer.host for peer in self.participants for rank in ranks_of(peer)}

    def stop(self, now: float) -> None:
        """Note that the head ends the round now."""
        self.stopped_at, self.cut = now, self.came_to_end(now)

    def miss(self, seconds: float) -> None:
        """Note that the head's process did not run for `seconds`. Workers may have run."""
        if self.stopped_at == math.inf:
            self.missed += seconds

    def came_to_end(self, now: float) -> float:
        """Return when the failure, loss or hang happened that ended the round; now, if none did."""
        failed = (f for f in self.failures.values() if f.culprit is not Culprit.HANG)
        found = [now, self.cut, self.still_since, *(f.at for f in failed if not f.stopped)]
        for peer in self.participants:
            heard = peer.presence.contact.heard
            if peer.is_lost and heard is not None:
                found.append(heard)
        return min(found)

    def ended(self, now: float) -> RoundEnded:
        """Return the fact that records the end of the round, as of now."""
        seen = min(self.stopped_at, now)
        begin, cut = self.begun - self.missed, self.came_to_end(seen)
        failures = restarts.in_order(self.failures.values())
        return RoundEnded(
            self.number,
            cut - now,
            seen - now,
            tuple(sorted(self.ends)),
            tuple(failure.moved(-now) for failure in failures[:MOST_FAILURES]),
            tuple(self.lost.values())[:MOST_LOST],
            sum(p.assignment.nproc for p in self.participants if p.assignment is not None),
            shares_of(self.participants, self.seats, self.number, begin=begin, end=seen, cut=cut),
        )


def ranks_of(peer: Peer) -> range:
    part = peer.assignment
    return range(0) if part is None else range(part.first_rank, part.first_rank + part.nproc)


def shares_of(
    peers: Iterable[Peer],
    seats: Sequence[float],
    number: int,
    *,
    begin: float,
    end: float,
    cut: float,
) -> RoundShares:
    """Return how the seats of its agents spent round `number`, from their last reports. `seats`: by
    agent. `cut`: when the cause of its end happened.
    """
    parts = [_part_of(peer, number, seats[peer.place.index], begin) for peer in peers]
    return together(parts, end - begin, cut - begin)


def _part_of(peer: Peer, number: int, seats: float, begin: float) -> RoundPart:
    report = peer.report
    if report is None or report.round != number:
        return RoundPart(Spent(), seats)
    exits = [e for e in report.exits if e.rank != NO_RANK]
    by_itself = [e for e in exits if e.code == 0 and not e.stopped]
    is_done = len(exits) >= report.nproc and len(by_itself) == len(exits)
    heard = peer.presence.contact.heard
    left = () if heard is None else tuple(max(0.0, heard - e.age - begin) for e in by_itself)
    return RoundPart(report.spent, seats, is_done, left, max(1, report.nproc))


# Its beginning


def begin_round(state: HeadState, checkpoint: CheckpointChosen, now: float) -> RoundBegan:
    """Begin the next round with this checkpoint, whose `age` is as of now. Return the fact."""
    known = max(p.report.round for p in state.roster if p.report is not None)
    state.round = max(state.round, known + 1)
    last, groups = state.groups, state.next_groups()
    participants = state.next_participants()
    assigned = assign(
        state.job,
        {p.place.index: p.last_report for p in participants},
        groups=groups,
        number=state.round,
        restarts=state.budget.total,
        checkpoint=checkpoint.path,
        stages=checkpoint.staged,
    )
    for peer in state.roster:
        peer.assignment = assigned.get(peer.place.index)
    seats = state.roster.seats
    state.current = Round(state.round, participants, groups, seats, now, checkpoint.path)
    state.begins += 1
    state.reconfigure(now)  # the configuration is sent with the orders to run
    return _began(state, state.current, last, checkpoint)


def _began(
    state: HeadState, current: Round, last: Sequence[int], checkpoint: CheckpointChosen
) -> RoundBegan:
    """Return the fact. `last` are the nodes of the round before, in the order of their ranks."""
    job, roster = state.job, state.roster
    parts = [(p.host, p.assignment) for p in roster if p.assignment is not None]
    anyone = parts[0][1]  # for what is the same in all assignments
    hosts = {p.place.node: p.host for p in roster}
    before, here = set(last), set(current.groups)
    is_first = state.begins == 1  # in this run: an earlier one may have had other nodes
    differ = len({part.local_world_size for _, part in parts}) > 1
    keeps_spares = 0 < job.most < job.nodes
    spares = roster.nodes - here if keeps_spares else ()
    lacking = checkpoint.lacking
    if checkpoint.staged and not checkpoint.path:
        lost = hosts_of(p for p in roster if p.is_lost and p.place.node in before)
        only = f"what only the memory of {some(lost, NAMES)} had is lost"
        lacking = f"storage has none yet, and {only}" if lost else lacking
    return RoundBegan(
        current.number,
        hosts=anyone.hosts,
        nodes=len(current.groups),
        ranks=anyone.world_size,
        came=tuple(hosts[node] for node in current.groups if last and node not in before),
        gone=tuple(hosts[node] for node in last if node not in here and node in hosts),
        keeps_spares=keeps_spares,
        spares=tuple(hosts[node] for node in sorted(spares)),
        checkpoint=checkpoint.path,
        rule=checkpoint.rule,
        passed_over=checkpoint.passed_over,
        lacking=lacking,
        begins=state.begins,
        saves=job.saves,
        age=checkpoint.age,
        layout=anyone.layout if is_first and differ else "",
        isolated=isolation(parts, asked=job.isolate) if is_first else (),
    )


def isolation(parts: Iterable[tuple[str, Assignment]], *, asked: bool) -> tuple[IsolatedGpus, ...]:
    """Return on which hosts workers share GPUs, and on which each worker sees only its own GPUs
    although the user has not asked for that. Hosts that are alike are returned together.

    `parts` has the host and the assignment of each agent.
    """
    nodes: dict[str, list[Assignment]] = {}
    for host, part in parts:
        nodes.setdefault(host, []).append(part)
    alike: dict[tuple[int, int], list[str]] = {}
    for host, of_host in nodes.items():
        shares = [share for part in of_host for share in part.shares.of]
        if not any(share.gpus for share in shares) or not of_host[0].shares.isolated:
            continue
        if max(share.sharers for share in shares) > 1:
            gpus = sum(len(share.gpus) for share in shares if share.leads)
            alike.setdefault((len(shares), gpus), []).append(host)
        elif not asked:
            alike.setdefault((0, 0), []).append(host)
    return tuple(IsolatedGpus(tuple(hosts), *counts) for counts, hosts in alike.items())
