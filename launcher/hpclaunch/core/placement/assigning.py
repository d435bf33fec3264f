"""Works out each agent's part in a round from the agents' reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

from ..protocol import host_lists
from ..protocol.messages import Report
from ..protocol.model import Assignment, Job, Shares
from . import ranks
from .devices import Task, share_out

LOOPBACK = "127.0.0.1"


def assign(
    job: Job,
    reports: Mapping[int, Report],
    *,
    groups: Sequence[int],
    number: int,
    restarts: int,
    checkpoint: str,
) -> dict[int, Assignment]:
    """Return the parts of these agents, by index. The agent with rank 0 hosts the round's store.

    `groups` are their nodes in the order of ranks, and `number` is the number of the round.
    """
    seats = ranks.seats(((job.places[i], r.nproc) for i, r in reports.items()), groups)
    store = seats[0].place.index
    address = node_address(store, job, reports)
    shares = _shares(seats, job, reports)
    peers = tuple(sorted({n for seat in seats for n in reports[seat.place.index].networks}))
    world = sum(seat.nproc for seat in seats)
    layout = ranks.layout({seat.group_rank: seat.local_world_size for seat in seats}.values())
    hosts = host_lists.written({s.group_rank: reports[s.place.index].host for s in seats}.values())
    return {
        seat.place.index: Assignment(
            round=number,
            restarts=restarts,
            first_rank=seat.first_rank,
            nproc=seat.nproc,
            world_size=world,
            first_local_rank=seat.first_local_rank,
            local_world_size=seat.local_world_size,
            group_rank=seat.group_rank,
            group_world_size=seat.group_world_size,
            layout=layout,
            address=node_address(seat.place.index, job, reports),
            store_address=address,
            store_port=reports[store].store_port,
            hosts_store=seat.place.index == store,
            checkpoint=checkpoint,
            shares=shares[seat.place.index],
            peers=peers if seat.place.index == store else (),
            hosts=hosts,
        )
        for seat in seats
    }


def _shares(
    seats: Sequence[ranks.Seat], job: Job, reports: Mapping[int, Report]
) -> dict[int, Shares]:
    shares: dict[int, Shares] = {}
    for _, group in groupby(seats, key=lambda seat: seat.group_rank):
        node = [seat.place.index for seat in group]
        tasks = [Task(reports[i].nproc, reports[i].gpus) for i in node]
        of = share_out(tasks, per_worker=job.gpus_per_worker, isolate=job.isolate)
        shares |= dict(zip(node, of, strict=True))
    return shares


def node_address(agent: int, job: Job, reports: Mapping[int, Report]) -> str:
    """Return the address at which the other nodes reach this agent's node.

    An agent that does not know its address is on the head's node: then it is the address at which
    an agent of another node has reached the head.
    """
    if own := reports[agent].address:
        return own
    node = job.places[agent].node
    others = (r.head_address for i, r in reports.items() if job.places[i].node != node)
    return next(filter(None, others), LOOPBACK)
