"""Several nodes in one process, one of whose stagers leads the others."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from concurrent.futures import wait
from pathlib import Path
from typing import Any

from kill_points import Channel, close

from hpclaunch.system.staging import messages
from hpclaunch.system.staging.launch import Launch
from hpclaunch.system.staging.node import StageNode
from hpclaunch.system.staging.nodes import Nodes
from hpclaunch.system.staging.orders import LocalNode
from hpclaunch.system.staging.service import Stager


class LedNodes:
    """Nodes with a staging directory each, and one storage. `lead` makes one of them the leader."""

    def __init__(self, scratch: Path, number: int = 3, name: str = "ckpt") -> None:
        self.storage = scratch / "storage" / name
        self.storage.mkdir(parents=True)
        self.stages = [scratch / f"memory-{index}" / name for index in range(number)]
        for stage in self.stages:
            stage.mkdir(parents=True)
        self.living = set(range(number))
        self.lease = 0.0  # of the workers of other nodes, in seconds
        self._stage_nodes = [StageNode(str(s), str(self.storage)) for s in self.stages]
        self._peers = {
            index: LocalNode(node, lambda: {i: self._stage_nodes[i] for i in self.living})
            for index, node in enumerate(self._stage_nodes)
        }
        self._stagers: list[tuple[Stager, Channel]] = []

    def lead(self, index: int = 0, **more: Any) -> Stager:
        """Return the stager of a node, which leads the others."""
        directories = str(self.storage), str(self.stages[index])
        launch = Launch(messages.Settings(*directories, "job", has_several_nodes=True, **more))
        self.channel = Channel()
        stager = Stager(self.channel, launch)
        stager.requests.is_hurried = True
        self._stagers.append((stager, self.channel))
        assert isinstance(stager.memory, Nodes)
        own, node = stager.memory.own, self._stage_nodes[index]  # the same node, twice
        own.noted, own._sums, own._damaged = node.noted, node._sums, node._damaged
        self.leader, self._memory = index, stager.memory
        self._lead()
        return stager

    def _lead(self) -> None:
        peers = {i: p for i, p in self._peers.items() if i in self.living - {self.leader}}
        hosts = {i: f"n{i}" for i in (*peers, self.leader)}
        self._memory.lead(self.leader, peers, hosts, lease=self.lease)

    def lose(self, *lost: int) -> None:
        """Lose nodes with all that is in their memory."""
        for index in lost:
            self.living.remove(index)
            shutil.rmtree(self.stages[index].parent)
            self.stages[index].mkdir(parents=True)
        if self.leader in self.living:
            self._lead()

    def join(self, index: int) -> None:
        self.living.add(index)
        self._lead()

    def close(self) -> None:
        for stager, channel in self._stagers:
            close(stager)
            channel.close()

    def sent(self, kind: type[Any]) -> list[Any]:
        return [message for message in self.channel.sent if isinstance(message, kind)]

    def restore(self, stager: Stager, *avoid: str, nodes: Collection[int] = ()) -> Any:
        wanted = tuple(sorted(nodes or self.living))
        return stager.restore(messages.Restore(1, avoid, wanted))

    def replicate(self, stager: Stager, looks: int = 3) -> None:
        """Copy the newest checkpoint to other nodes, but not to storage."""
        assert isinstance(stager.memory, Nodes)
        for _ in range(looks):
            found = stager.looking.look()
            complete = stager.looking.complete(found)
            stager.memory.replicate(complete, stager.looking.incomplete(found, complete))
            wait(stager.memory._replicating._keeping.values())

    def work(self, stager: Stager) -> None:
        """Work until all is copied and drained."""
        assert isinstance(stager.memory, Nodes)
        for _ in range(5):
            stager.work()
            wait(stager.memory._replicating._keeping.values())
