"""A simulated cluster with --stage on several nodes: scripts save, nodes are lost and return, and
heads follow each other. The choices are those of core/staging, everything else is simulated.

    python tests/sim/staging_replay.py SEED        the transcript of one run
    python tests/sim/staging_replay.py --seeds N   many runs
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from staging_checker import Checker
from staging_leader import Leader, complete
from staging_nodes import TRACKER, Activity, Data, Node, World

from hpclaunch.core.staging.generations import Manifest

FAULTS_END, END = 120.0, 230.0
LEASE = 3.0  # seconds until the workers of a node that is cut off are killed
POLL = 0.25


@dataclass(frozen=True)
class Script:
    """The habits of a script that saves."""

    is_sharded: bool  # over the nodes; otherwise the first rank saves all
    is_in_place: bool  # all saves have the same name
    is_direct: bool  # written under the final name, and not renamed
    unlinks: bool  # deletes the old file first
    has_config: bool  # a file that is part of each save, and is written once
    rotates_everywhere: bool  # one rank on each node deletes old checkpoints, not only the first
    keeps: int  # how many checkpoints; 0: all
    has_tracker: bool  # a file beside the checkpoints that names the newest


@dataclass(frozen=True)
class Plan:
    seed: int
    hosts: tuple[str, ...]
    script: Script
    interval: float  # seconds between two saves
    pace: float  # seconds between two faults
    loses: float
    delays: float


def draw(seed: int) -> Plan:
    rng = Random(f"{seed} staging plan")
    count = rng.choice((2, 2, 3, 3, 3, 4, 5))
    shared = rng.random() < 0.15 and count > 2  # two nodes on one host
    hosts = tuple(f"h{max(0, i - 1) if shared else i}" for i in range(count))
    is_in_place = rng.random() < 0.5
    script = Script(
        is_sharded=rng.random() < 0.6,
        is_in_place=is_in_place,
        is_direct=is_in_place or rng.random() < 0.5,
        unlinks=is_in_place and rng.random() < 0.2,
        has_config=is_in_place and rng.random() < 0.5,
        rotates_everywhere=rng.random() < 0.3,
        keeps=rng.choice((0, 1, 1, 2, 3)),
        has_tracker=seed % 2 == 1,
    )
    return Plan(
        seed,
        hosts,
        script,
        interval=rng.choice((2.0, 4.0, 8.0)),
        pace=rng.choice((4.0, 8.0, 16.0)),
        loses=rng.choice((0.0, 0.0, 0.02)),
        delays=rng.choice((0.0, 0.05, 0.2)),
    )


class Cluster:
    """The head, the workers and storage. `run` raises BrokenLawError when a law is broken."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.world = World(plan.seed)
        self.world.loses, self.world.delays = plan.loses, plan.delays
        self.rng = self.world.rng
        self.nodes = [Node(self.world, i, host) for i, host in enumerate(plan.hosts)]
        self.storage: dict[str, Data] = {}
        self.checker = Checker(self)
        self.leader: Leader | None = None
        self.members: list[Node] = []
        self.participants: list[int] = []  # in the order of ranks
        self._term = self._number = 0
        self._saves = 0
        self._step = 0  # of the training
        self._fails = False  # a worker has failed

    def run(self) -> None:
        self.world.spawn(self._head())
        self.world.spawn(self._strike())
        self.world.after(FAULTS_END, self._calm)
        self.world.run(END, self.checker.check)
        self.checker.settled()

    # The head

    def _living(self) -> list[Node]:
        return [n for n in self.nodes if n.is_heard]

    def _leads(self) -> bool:
        leader = self.leader
        return leader is not None and leader.node in self.members and leader.node in self._living()

    def _head(self) -> Activity:
        while True:
            yield self.rng.uniform(0.1, 1.0)
            self.members = self._living()
            if not self.members:
                continue
            yield from self._stop_workers()
            if not self._leads() or self.leader.node.start != self._leader_start:
                yield self.rng.uniform(0.1, 2.0)
                self.members = self._living()
                if not self.members:
                    continue
                self._term += 1
                node = self.rng.choice(self.members)
                self._leader_start = node.start
                peers = [n.index for n in self.members]
                self.world.say(f"node {node.index} leads in term {self._term}")
                self.leader = Leader(self, node, self._term, peers)
            self._number += 1
            self._assign()
            if (yield from self._restore()):
                yield from self._round()

    def _assign(self) -> None:
        """Choose who takes part. Nodes keep their ranks if they can."""
        present = [n.index for n in self.members]
        before = [i for i in self.participants if i in present]
        new = [i for i in present if i not in before]
        self.rng.shuffle(new)
        # A new node takes the place of a lost one, which may be the first.
        order = [*before, *new] if self.rng.random() < 0.5 else [*new, *before]
        if len(order) > 1 and self.rng.random() < 0.15:
            order.pop()  # a spare
        self.participants = order

    def _restore(self) -> Activity:
        peers = [n.index for n in self.members]
        starts = [n.start for n in self.members]
        leader = self.leader
        self.world.say(f"restore {self._number} for {self.participants} of {peers}")
        restored = leader.restore(self._number, self.participants, peers)
        answer = self.world.spawn(restored, leader.node)
        if self.world.now < FAULTS_END and self.rng.random() < 0.15:
            struck = self.rng.choice([leader.node, *self.members])
            self.world.after(self.rng.uniform(0.0, 2.0), lambda: self._lose(struck))
        while not answer.is_there:
            yield POLL
            are_there = all(n in self._living() for n in self.members)
            if not are_there or starts != [n.start for n in self.members]:
                yield self.rng.uniform(0.0, 2.0)
                return False
        if answer.value:
            self._step = self.checker.restored(self.members, self.participants, leader.node)
        return answer.value

    def _round(self) -> Activity:
        number, ranks = self._number, [self.nodes[i] for i in self.participants]
        self.world.say(f"round {number} of {self.participants}")
        starts, self._fails = [n.start for n in self.nodes], False
        for node in ranks:
            node.round = number
        self.world.spawn(self._train(number, ranks))
        while not self._fails:
            yield POLL
            are_there = all(n.is_heard for n in (*ranks, self.leader.node))
            if not are_there or any(n.start != starts[n.index] for n in (*ranks, self.leader.node)):
                break
            living = self._living()
            if living != self.members:
                is_new = len(living) > len(self.members)
                self.members = living
                self.leader.peers = tuple(n.index for n in living)
                if is_new and self.rng.random() < 0.5:
                    break  # it takes part
            calm = self.world.now > FAULTS_END and len(self.participants) < len(self.members)
            if calm and self.rng.random() < 0.05:
                break
        yield self.rng.uniform(0.0, 1.0)

    def _stop_workers(self) -> Activity:
        """Kill the workers of this round, and wait until those that are cut off are killed too."""
        for node in self.members:
            node.round = 0
        if any(node.round for node in self.nodes):
            yield LEASE
            for node in self.nodes:
                node.round = 0

    # The script

    def _train(self, number: int, ranks: Sequence[Node]) -> Activity:
        while True:
            calm = self.world.now > FAULTS_END
            yield 12.0 if calm else self.rng.uniform(0.5, 2.0) * self.plan.interval
            if not (yield from self._save(number, ranks)):
                return

    def _save(self, number: int, ranks: Sequence[Node]) -> Activity:
        """Save once. Return False if the workers were killed."""
        script, first = self.plan.script, ranks[0]
        self._saves += 1
        self._step += 10
        token, key = self._saves, "last" if script.is_in_place else f"step-{self._step}"

        def write(node: Node, name: str, world: int = 0) -> Activity:
            def runs() -> bool:
                return node.is_alive and node.round == number

            yield self.rng.uniform(0.0, 0.5)
            if script.unlinks and runs() and name in node.files:
                self.checker.script_deletes(node.files.pop(name))
                yield self.rng.uniform(0.0, 0.5)
            if script.is_direct and runs():
                node.files[name] = Data(1000, self.world.clock(), token, is_whole=False)
            yield self.rng.uniform(0.05, 1.5)
            if not runs():
                return False
            node.files[name] = Data(1000, self.world.clock(), token, world=world)
            return True

        if script.is_sharded:
            config = f"{key}/config"
            if script.has_config and config not in first.files and first.round == number:
                first.files[config] = Data(1000, self.world.clock(), 0)
            shards = [
                self.world.spawn(write(node, f"{key}/shard-{rank}"))
                for rank, node in enumerate(ranks)
            ]
            for shard in shards:
                if not (yield shard):
                    return False
            decisive = f"{key}/meta"
        else:
            decisive = key
        if not (
            yield self.world.spawn(write(first, decisive, len(ranks) if script.is_sharded else 1))
        ):
            return False
        self.world.say(f"saved {key} by {[n.index for n in ranks]}: save {token}")
        self.checker.saved(token, self._step, first.files[decisive])
        if script.has_tracker:
            first.files[TRACKER] = Data(1000, self.world.clock(), token)
        if script.keeps and not script.is_in_place:
            yield self.rng.uniform(0.0, 0.2)
            for node in ranks if script.rotates_everywhere else ranks[:1]:
                self.world.spawn(self._rotate(node, number))
        return True

    def _rotate(self, node: Node, number: int) -> Activity:
        """Delete the oldest checkpoints that this node sees."""
        names = node.files.keys() - {TRACKER}
        steps = sorted({int(n.split("/")[0].split("-")[1]) for n in names})
        for step in steps[: -self.plan.script.keeps]:
            for name in [n for n in node.files if n.split("/")[0] == f"step-{step}"]:
                if not node.is_alive or node.round != number:
                    return
                if name in node.files:
                    self.checker.script_deletes(node.files.pop(name))
                    yield self.rng.choice((0.0, 0.01, 0.5))
            self.world.say(f"the script deletes step-{step} on node {node.index}")

    # Storage

    def newest_of_storage(self) -> Manifest:
        return complete(
            {name: (data, self.leader.node.index) for name, data in self.storage.items()}
        )[0]

    def newest_stored(self) -> int:
        return self.newest_of_storage().time if self.storage else 0

    def publish(self, drained: Manifest, draft: dict[str, Data]) -> None:
        self.world.say(f"drained {drained.key} {drained.generation}")
        self._remove_stored(drained.key)
        self.storage |= draft
        self.checker.drained(drained)

    def delete_stored(self, deleted: Manifest) -> None:
        """Delete a checkpoint on storage if a newer one is there."""
        stored = self.storage.get(deleted.decisive)
        if stored and stored.time <= deleted.time and self.newest_stored() > stored.time:
            self.checker.deleting_stored(stored)
            self._remove_stored(deleted.key)

    def _remove_stored(self, key: str) -> None:
        for name in [n for n in self.storage if n == key or n.startswith(f"{key}/")]:
            del self.storage[name]

    # Faults

    def _strike(self) -> Activity:
        while True:
            yield self.rng.expovariate(1 / self.plan.pace)
            if self.world.now > FAULTS_END:
                break
            for _ in range(self.rng.choice((1, 1, 1, 2))):
                self.rng.choice(
                    (self._fail, self._fail, self._kill, self._kill, self._cut, self._pause)
                )()

    def _calm(self) -> None:
        self.world.loses = self.world.delays = 0.0
        for node in self.nodes:
            node.group = 0

    def _fail(self) -> None:
        self.world.say("a worker fails")
        self._fails = True

    def _kill(self) -> None:
        self._lose(self.rng.choice(self.nodes))

    def _lose(self, node: Node) -> None:
        """Kill a node, which returns later with nothing."""
        if not node.is_alive or self.world.now > FAULTS_END:
            return
        self.world.say(f"node {node.index} is lost")
        node.is_alive, node.round = False, 0
        self.world.after(self.rng.choice((3.0, 20.0, 60.0)), lambda: self._return(node))

    def _return(self, node: Node) -> None:
        self.world.say(f"node {node.index} returns with nothing")
        node.start += 1
        node.empty()
        node.is_alive, node.group, node.paused_until = True, 0, 0.0

    def _cut(self) -> None:
        """Cut off less than half of the nodes, which return with what they have."""
        if any(n.group for n in self.nodes):
            return
        living = [n for n in self.nodes if n.is_alive]
        cut = self.rng.sample(living, self.rng.randint(0, max(0, (len(living) - 1) // 2)))
        for node in cut:
            self.world.say(f"node {node.index} is cut off")
            node.group = 1

        def heal() -> None:
            self.world.say("all reach each other")
            for node in cut:
                node.group = 0

        self.world.after(self.rng.choice((2.0, 8.0, 30.0)), heal)

    def _pause(self) -> None:
        node = (
            self.leader.node
            if self.leader and self.rng.random() < 0.6
            else self.rng.choice(self.nodes)
        )
        if len(self._living()) > 2:
            self.world.say(f"node {node.index} is paused")
            node.paused_at = self.world.now
            node.paused_until = self.world.now + self.rng.choice((1.0, 8.0, 25.0))
