"""The state of a head: everything about the job that outlives a stage.

Stages read it and change it; nothing here decides when a stage is over.
"""

from __future__ import annotations

import itertools
import math

from ..consensus.election import Election
from ..consensus.leader_lease import LeaderLease
from ..consensus.rotation import Rotation
from ..ending.job_end import JobEnd
from ..placement.assigning import next_groups
from ..protocol import ranges
from ..protocol.configuration import Configuration, JobRecord
from ..protocol.messages import Report
from ..protocol.model import Job
from .orders import Orders
from .restarts import Budget
from .roster import Peer, Roster
from .round import Round
from .stagers import Stagers
from .stages.rendezvous import Rendezvous
from .takeover import Takeover
from .viewers import Viewers

QUESTION_BITS = 32  # the low bits of a question's number; those above are the head's term
MOST_NEXT_HEADS = 16  # listed in a configuration, with addresses: every agent is sent all of them


class HeadState:
    def __init__(self, job: Job, me: int, term: int, configuration: Configuration | None) -> None:
        self.job, self.timing, self.me = job, job.timing, me
        self.rotation = Rotation(job.places)
        # The number of the current round; between two rounds, that of the next one.
        self.round = job.first_round
        self.current: Round | None = None  # the last round that began under this head
        self.draining: tuple[str, ...] = ()  # the hosts that Slurm drains, as last reported
        self.begins = 0  # rounds that have begun, as far as this head knows
        self.takeover: Takeover | None = None
        self.tenure_since = math.inf
        self.budget = Budget(job.max_restarts)
        self.roster = Roster(job, me)
        presences = [peer.presence for peer in self.roster]
        self.lease = LeaderLease(
            *(self.rotation, job.timing, me, presences, configuration, term),
            elects=job.elects,
        )
        # The numbers of this head's questions. Other heads, also on this agent, use other numbers.
        self.numbers = itertools.count(1 + (self.lease.tenure << QUESTION_BITS))
        self.orders = Orders(self)
        self.rendezvous = Rendezvous(job, self.roster, self.lease, self.numbers)
        self.end = JobEnd(job, self.budget, self.numbers)
        self.viewers = Viewers(self.numbers)
        self.stagers = Stagers(self)

    @property
    def current_round(self) -> Round:
        assert self.current is not None, "there is a round in this stage"
        return self.current

    @property
    def groups(self) -> list[int]:
        """The nodes of the last round in the order of their ranks; [] before the first round."""
        if self.current is not None:
            return self.current.groups
        return [] if self.takeover is None else self.takeover.groups()

    @property
    def knows_rounds(self) -> bool:
        """Whether this head has begun rounds, or has taken over from one that may have. If not, an
        agent that reports a round is of another launch in this job step or, without Slurm, of an
        earlier start of this head.
        """
        return self.current is not None or self.takeover is not None

    @property
    def can_be_replaced(self) -> bool:
        """Whether the others can elect another head, and continue without this node."""
        left = self.roster.nodes - {self.job.places[self.me].node}
        return self.begins > 0 and self.job.elects and len(left) >= self.rendezvous.fewest

    def take_over(self, election: Election[Report], now: float, heard: float) -> None:
        """Continue the job of a lost head. `heard`: when it was last heard."""
        record = election.configuration.record
        self.takeover = takeover = Takeover(self.job, self.roster, election, now, heard)
        self.budget.tally = record.tally
        self.begins = int(takeover.begun)
        self.round = max(takeover.next_round, self.job.first_round)
        self.rendezvous.take_over(now, begun=takeover.begun)
        self.rendezvous.pause(takeover.not_before)

    # The next round

    def next_groups(self) -> list[int]:
        """Return the nodes of the next round in the order of their ranks. Nodes that Slurm drains
        are the last spares.
        """
        fit = sorted(self.roster.nodes_by_task, key=self.drained_nodes.__contains__)
        return next_groups(self.groups, fit, self.job.most)

    @property
    def drained_nodes(self) -> set[int]:
        """The nodes that Slurm drains."""
        return {p.place.node for p in self.roster if p.host in self.draining}

    def next_participants(self) -> list[Peer]:
        nodes = set(self.next_groups())
        return [p for p in self.roster if p.place.node in nodes]

    # The configuration

    def reconfigure(self, now: float) -> bool:
        """Make the agents that are present voters. Return whether there is a new configuration."""
        if not self.lease.holds(now):
            return False
        version = self.lease.configuration.version
        before = self.lease.configuration.record.round
        number = before if self.current is None else self.round
        unfit = ranges.written(self.roster.recorded_unfit)
        record = JobRecord(number, self.budget.tally, self.roster.cordons, unfit)
        self.lease.reconfigure(record, now, self._next_heads())
        self.lease.drop_old_configuration(now)
        return self.lease.configuration.version > version

    def _next_heads(self) -> tuple[tuple[int, str], ...]:
        """Return the agents that would lead after this one, with their addresses."""
        after = (self.roster[agent] for agent in self.rotation.after(self.me, MOST_NEXT_HEADS))
        return tuple((p.place.index, p.report.address) for p in after if p.report and not p.is_lost)
