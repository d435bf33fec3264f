"""From what the agents report to everybody's part in a round."""

from __future__ import annotations

from collections.abc import Sequence

from . import ranks
from .messages import Report
from .model import HEAD, Assignment, Place


def assign(
    places: Sequence[Place],
    reports: Sequence[Report],
    *,
    number: int,
    restarts: int,
    checkpoint: str,
) -> list[Assignment]:
    """The parts of all agents, in the order of their places; the round's store is with rank 0."""
    seats = ranks.seats(zip(places, (r.nproc for r in reports), strict=True))
    store = seats[0].place.index
    address = _store_address(store, places, reports)
    layout = ranks.layout({seat.group_rank: seat.local_world_size for seat in seats}.values())
    parts = {
        seat.place.index: Assignment(
            round=number,
            restarts=restarts,
            first_rank=seat.first_rank,
            nproc=seat.nproc,
            world_size=sum(s.nproc for s in seats),
            first_local_rank=seat.first_local_rank,
            local_world_size=seat.local_world_size,
            group_rank=seat.group_rank,
            group_world_size=seat.group_world_size,
            layout=layout,
            address=address if seat.place.index == store else reports[seat.place.index].address,
            store_address=address,
            store_port=reports[store].store_port,
            hosts_store=seat.place.index == store,
            checkpoint=checkpoint,
        )
        for seat in seats
    }
    return [parts[place.index] for place in places]


def _store_address(store: int, places: Sequence[Place], reports: Sequence[Report]) -> str:
    """Where all workers can reach the store.

    The best address of the head is one at which another node did reach it.
    """
    if store == HEAD:
        node = places[HEAD].node
        for place, r in zip(places, reports, strict=True):
            if r.head_address and place.node != node:
                return r.head_address
    return reports[store].address
