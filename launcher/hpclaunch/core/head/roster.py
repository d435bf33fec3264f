"""The agents as the head knows them, itself included: the newest report of each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence, Set

from ..consensus.presence import Presence
from ..protocol import ranges
from ..protocol.configuration import Cordon
from ..protocol.effects import Effect, Record
from ..protocol.facts import CordonKind, NodesCordoned
from ..protocol.messages import Report
from ..protocol.model import NO_RANK, Assignment, Job, Phase, Place
from ..protocol.timing import Timing
from ..protocol.wording import NAMES, some
from .round_shares import Holder, seats_of

CORDONED = {  # why a node has no workers; for an unfit node, its agent reports why
    CordonKind.FAILING: "its workers, and no others, have failed again and again",
    CordonKind.SLOW: "the others have waited for its workers, step after step",
    CordonKind.DRAINING: "Slurm drains it",
}


class Peer:
    """One agent as the head knows it. `report` is None until the agent is heard."""

    def __init__(self, place: Place, timing: Timing) -> None:
        self.place = place
        self.presence = Presence(timing)
        self.report: Report | None = None
        self.assignment: Assignment | None = None
        self.cordoned: CordonKind | None = None  # while there are spares

    @property
    def last_report(self) -> Report:
        """The report of an agent that was heard, as all have been that take part in a round."""
        assert self.report is not None, "the agent was heard"
        return self.report

    @property
    def is_lost(self) -> bool:
        """Whether the agent was given up."""
        return self.presence.is_given_up

    @property
    def why_lost(self) -> str:
        """Why the agent was given up; "" if it was not."""
        loss, silent = self.presence.loss, self.presence.silent
        return "" if loss is None else f"the agent on {self.host} was lost: {loss.words(silent)}"

    @property
    def unfit(self) -> str:
        """Why its node is cordoned for good; "" if it is not."""
        return "" if self.report is None else self.report.unfit

    @property
    def why_cordoned(self) -> str:
        """Why its node is cordoned; "" if it is not."""
        return self.unfit or ("" if self.cordoned is None else CORDONED[self.cordoned])

    @property
    def out(self) -> bool:
        """Whether its node can have no workers."""
        return bool(self.is_lost or self.unfit or self.cordoned)

    @property
    def host(self) -> str:
        """The host's name as the agent reports it: without Slurm, it is not known before that."""
        return self.place.host if self.report is None else self.report.host

    def accept(self, report: Report, now: float, *, follows: bool = True) -> bool:
        """Note a report. Return False if it is old, or from another start of an agent that is not
        lost.

        `follows`: the agent follows this head. Otherwise it answers the orders of another one.

        Two launches in one job step have the same keys. So an agent of the second launch may reach
        the head of the first one, which is still leaving, and must not be mistaken for the agent of
        the first launch.
        """
        known = self.report
        if known is not None and report.incarnation != known.incarnation:
            if not self.is_lost:
                return False
            excludes = report.claim != "" and report.claim == known.claim
            self.presence.start_anew(excludes_last=excludes)
            known = None
        if known is not None and report.serial <= known.serial:
            return False
        answers = report.heard if follows else None
        self.presence.hear(now, term=report.term, version=report.version, answers=answers)
        self.report = report
        return True

    @property
    def has_workers(self) -> bool:
        """Whether the agent has workers, or may have because it was never heard."""
        busy = (Phase.RUNNING, Phase.STOPPING)
        return self.report is None or self.report.phase in busy

    def workers_have_ended(self, number: int) -> bool:
        """Return whether all workers of this round have ended. Leftovers may still run."""
        report, part = self.last_report, self.assignment
        if part is None or report.round != number:
            return False
        return len({e.rank for e in report.exits if e.rank != NO_RANK}) == part.nproc

    def workers_have_ended_well(self, number: int) -> bool:
        """Return whether all workers of this round have ended with 0."""
        return self.workers_have_ended(number) and not any(e.code for e in self.last_report.exits)

    @property
    def has_ended(self) -> bool:
        """Whether the agent was heard last at its end."""
        return self.report is not None and self.report.phase is Phase.ENDED

    @property
    def can_come_back(self) -> bool:
        """Whether the agent was given up, is heard again, and has no workers any more."""
        idle = self.report is not None and self.report.phase in (Phase.PREPARING, Phase.IDLE)
        return self.is_lost and idle

    def has_stopped(self, number: int) -> bool:
        """Return whether the agent has no worker of this round left that SIGKILL can end."""
        report = self.last_report
        if report.round != number:
            return report.trouble is not None
        out = report.trouble is not None or bool(report.unfit)  # it may never be idle again
        ended = out and report.phase is Phase.PREPARING
        return ended or report.phase in (Phase.IDLE, Phase.STUCK)


class Roster:
    """All agents of the job, in Slurm's order; `me` is the one that leads."""

    def __init__(self, job: Job, me: int) -> None:
        self.me = me
        self._peers = [Peer(place, job.timing) for place in job.places]
        self._of_node: dict[int, list[Peer]] = defaultdict(list)
        for peer in self._peers:
            self._of_node[peer.place.node].append(peer)
        self.absent = {place.index for place in job.places}  # agents that were never heard
        self._possible: frozenset[int] | None = None  # a cache of `possible`; None: out of date
        self.changes = 0  # how often `changed` was called
        self.last_out: Peer | None = None  # the last one that was lost, or whose node became unfit
        self.recorded_unfit: set[int] = set()  # unfit nodes for which a NodesCordoned was recorded

    def __iter__(self) -> Iterator[Peer]:
        return iter(self._peers)

    def __len__(self) -> int:
        return len(self._peers)

    def __getitem__(self, index: int) -> Peer:
        return self._peers[index]

    def of_node(self, node: int) -> Sequence[Peer]:
        """Return the agents of a node."""
        return self._of_node[node]

    @property
    def present(self) -> list[Peer]:
        """All agents that are not lost, whether heard or not."""
        return [p for p in self._peers if not p.is_lost]

    @property
    def others(self) -> list[Peer]:
        """All agents that are present, other than the head's own."""
        return [p for p in self._peers if not p.is_lost and p.place.index != self.me]

    def all_have_left(self, but_for: Set[int]) -> bool:
        """Return whether all agents have ended, except for those that are proven dead or are in
        `but_for`.

        The head must not leave before an agent that is only silent: that agent would take the head
        for dead, and continue by itself.
        """
        awaited = (p for p in self._peers if p.place.index not in but_for)
        return all(peer.has_ended for peer in awaited if not peer.presence.is_dead)

    @property
    def nodes(self) -> set[int]:
        """The nodes that can take part: all their agents were heard, and none is `out`."""
        return self.possible - {self._peers[i].place.node for i in self.absent}

    @property
    def nodes_by_task(self) -> list[int]:
        """The nodes that can take part, ordered by the first task of each.

        Slurm may number tasks in another order than nodes (`srun --distribution=arbitrary`).
        """
        first: dict[int, int] = {}
        for peer in self._peers:
            if peer.report is not None:
                task = first.setdefault(peer.place.node, peer.report.task)
                first[peer.place.node] = min(task, peer.report.task)
        return sorted(self.nodes, key=lambda node: (first[node], node))

    @property
    def possible(self) -> set[int]:
        """The nodes that can take part once all their agents are heard."""
        if self._possible is None:
            out = {p.place.node for p in self._peers if p.out}
            self._possible = frozenset(p.place.node for p in self._peers) - out
        return set(self._possible)

    @property
    def seats(self) -> list[float]:
        """The number of seats of each agent, as far as it is known."""
        known = (
            Holder(p.place.node)
            if p.report is None
            else Holder(p.place.node, p.report.gpus, p.report.nproc)
            for p in self._peers
        )
        return seats_of([*known])

    def cordon(self, hosts: Iterable[str], kind: CordonKind, number: int) -> list[Effect]:
        """Start no workers on these hosts, for which there are spares, until `uncordon`. `number`:
        the round that the fact names.
        """
        hosts = tuple(hosts)
        if not hosts:
            return []
        for peer in self._peers:
            if peer.host in hosts:
                peer.cordoned = kind
        self.changed()
        return [Record(NodesCordoned(number, hosts, kind))]

    def uncordon(self) -> None:
        """Let all nodes take part again that `cordon` excluded. Unfit nodes stay cordoned."""
        cordoned = [peer for peer in self._peers if peer.cordoned]
        for peer in cordoned:
            peer.cordoned = None
        if cordoned:
            self.changed()

    @property
    def cordons(self) -> tuple[Cordon, ...]:
        """The agents whose nodes are cordoned while there are spares, by the reason."""
        found: dict[CordonKind, list[int]] = {}
        for peer in self._peers:
            if peer.cordoned is not None:
                found.setdefault(peer.cordoned, []).append(peer.place.index)
        return tuple(Cordon(kind, ranges.written(agents)) for kind, agents in found.items())

    def changed(self) -> None:
        """Note that some node can no longer take part, or can take part again."""
        self._possible = None
        self.changes += 1

    @property
    def unheard(self) -> list[Peer]:
        return [self._peers[i] for i in sorted(self.absent)]


class Awaited:
    """A cache of the agents that are waited for.

    The head checks this at every report. To keep it cheap with thousands of agents, those that were
    not done last time are checked first, and all agents only once these are done.
    """

    def __init__(self) -> None:
        self._last: list[Peer] = []

    def none_left(
        self, peers: Callable[[], Iterable[Peer]], is_done: Callable[[Peer], bool]
    ) -> bool:
        """Return whether all of the peers are done."""
        while self._last and is_done(self._last[-1]):
            self._last.pop()
        if not self._last:
            self._last = [p for p in peers() if not is_done(p)]
        return not self._last


def hosts_of(peers: Iterable[Peer]) -> tuple[str, ...]:
    """Return the names of their hosts, each once."""
    return tuple(dict.fromkeys(p.host for p in peers))


def names_of(peers: Iterable[Peer]) -> str:
    """Return the names of their hosts, for a line of text."""
    return some(hosts_of(peers), NAMES)
