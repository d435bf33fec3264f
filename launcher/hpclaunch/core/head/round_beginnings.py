"""The beginning of a round: its parts are assigned, and recorded as a fact."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ..placement.assigning import assign
from ..protocol.events import CheckpointChosen
from ..protocol.facts import IsolatedGpus, RoundBegan
from ..protocol.model import Assignment
from ..protocol.wording import NAMES, some
from .roster import hosts_of
from .round import Round
from .seat_use import seats_of_agents
from .takeover import next_unused_round

if TYPE_CHECKING:
    from .head_state import HeadState


def begin_round(state: HeadState, checkpoint: CheckpointChosen, now: float) -> RoundBegan:
    """Begin the next round with this checkpoint, whose `age` is as of now. Return the fact."""
    state.round = max(state.round, next_unused_round(state.roster))
    last, groups = state.groups, state.next_groups()
    participants = state.next_participants()
    assigned = assign(
        state.job,
        {p.place.index: p.report for p in participants if p.report is not None},
        groups=groups,
        number=state.round,
        restarts=state.budget.total,
        checkpoint=checkpoint.path,
        stages=checkpoint.staged,
    )
    for peer in state.roster:
        peer.assignment = assigned.get(peer.place.index)
    seats = seats_of_agents(state.roster)
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
    is_first = current.number == 0
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
