"""The nodes of a round, and each agent's part in it: ranks, GPUs, and the address of the store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from ..protocol import host_lists
from ..protocol.messages import Report
from ..protocol.model import Assignment, Job
from .devices import Task, share_out

LOOPBACK = "127.0.0.1"


def next_groups(last: Sequence[int], fit: Sequence[int], most: int) -> list[int]:
    """Return the nodes of the next round in the order of their groups.

    `last` are the nodes of the last round, in the order of their groups. `fit` are the nodes that
    can take part, in the order of Slurm's tasks; at most `most` of them do (0: all).

    A node of the last round keeps its group, and so its ranks. A spare takes the group of a node
    that is out. Without spares, the last groups fill the gaps. New nodes come last.
    """
    size = min(most or len(fit), len(fit))
    can_take_part, before = set(fit), set(last)
    spares = [node for node in fit if node not in before]
    spares.reverse()
    groups: list[int | None] = [node if node in can_take_part else None for node in last]
    for group, node in enumerate(groups):
        if node is None and spares:
            groups[group] = spares.pop()
    while len(groups) < size and spares:
        groups.append(spares.pop())
    for group, node in enumerate(groups):
        while groups and groups[-1] is None:
            groups.pop()
        if node is None and group < len(groups):
            groups[group] = groups.pop()
    return [node for node in groups if node is not None]


def assign(
    job: Job,
    reports: Mapping[int, Report],
    *,
    groups: Sequence[int],
    number: int,
    restarts: int,
    checkpoint: str,
    stages: bool = False,
) -> dict[int, Assignment]:
    """Return the assignments of these agents, by index. The one with rank 0 hosts the store.
    `stages`: their workers save in memory.

    `groups` are their nodes in the order of ranks, and `number` is the number of the round. The
    ranks are 0..n-1, those of a node are contiguous, and so are its local ranks.
    """
    of_node: dict[int, list[int]] = {node: [] for node in groups}
    for agent in sorted(reports):
        of_node[job.places[agent].node].append(agent)
    store = of_node[groups[0]][0]
    store_address = address_of(store, job, reports)
    networks = tuple(sorted({each for report in reports.values() for each in report.networks}))
    workers = [sum(reports[agent].nproc for agent in agents) for agents in of_node.values()]
    world_size, layout = sum(workers), _layout(workers)
    hosts = host_lists.written(reports[agents[0]].host for agents in of_node.values())
    parts: dict[int, Assignment] = {}
    first_rank = 0
    for group, agents in enumerate(of_node.values()):
        tasks = [Task(reports[agent].nproc, reports[agent].gpus) for agent in agents]
        shares = share_out(tasks, per_worker=job.gpus_per_worker, isolate=job.isolate)
        first_local_rank = 0
        for agent, share in zip(agents, shares, strict=True):
            parts[agent] = Assignment(
                round=number,
                restarts=restarts,
                first_rank=first_rank + first_local_rank,
                nproc=reports[agent].nproc,
                world_size=world_size,
                first_local_rank=first_local_rank,
                local_world_size=workers[group],
                group_rank=group,
                group_world_size=len(groups),
                layout=layout,
                address=address_of(agent, job, reports),
                store_address=store_address,
                store_port=reports[store].store_port,
                hosts_store=agent == store,
                checkpoint=checkpoint,
                shares=share,
                peers=networks if agent == store else (),
                hosts=hosts,
                stages=stages,
            )
            first_local_rank += reports[agent].nproc
        first_rank += workers[group]
    return parts


def _layout(workers: Iterable[int]) -> str:
    """Write numbers of workers as Slurm writes tasks per node: [2, 2, 2, 1] -> "2(x3),1"."""
    runs = [(count, sum(1 for _ in same)) for count, same in groupby(workers)]
    return ",".join(f"{count}(x{n})" if n > 1 else str(count) for count, n in runs)


def address_of(agent: int, job: Job, reports: Mapping[int, Report]) -> str:
    """Return the address at which the other nodes reach this agent's node.

    An agent that does not know its address is on the head's node, so its address is the one at
    which an agent of another node has reached the head.
    """
    if own := reports[agent].address:
        return own
    node = job.places[agent].node
    others = (r.head_address for i, r in reports.items() if job.places[i].node != node)
    return next(filter(None, others), LOOPBACK)
