"""Stagers of several nodes as processes, which reach each other over a network."""

import contextlib
import os
import time
from pathlib import Path

import pytest
from random_kills import LIMIT, eventually, wait_for
from saving_scripts import picture, write
from stalling_storage import CALLS, stalling_storage

from helper_programs import program_after
from hpclaunch.system.shared import helper
from hpclaunch.system.staging import messages
from hpclaunch.system.staging.client import StagingClient
from hpclaunch.system.staging.stage_directory import StageDirectory

pytestmark = pytest.mark.starts
KEY = os.urandom(32).hex()


class Stagers:
    """A stager for each of several nodes on this machine."""

    def __init__(self, scratch: Path, number: int) -> None:
        self.storage = scratch / "storage" / "ckpt"
        self.storage.mkdir(parents=True)
        self._scratch = scratch
        self.directories: dict[int, StageDirectory] = {}
        self.clients: dict[int, StagingClient] = {}
        self.ports: dict[int, int] = {}
        self.living: set[int] = set()
        self.term = 0
        for index in range(number):
            self.join(index)

    def join(self, index: int) -> None:
        """Start a stager with nothing in memory."""
        base = self._scratch / f"memory-{index}"
        base.mkdir(exist_ok=True)
        self.directories[index] = StageDirectory(str(base), str(self.storage))
        self.clients[index] = client = self.start(self.directories[index])
        self.ports[index] = wait_for(client, messages.Listening).port
        self.living.add(index)

    def start(self, directory: StageDirectory) -> StagingClient:
        directories = str(self.storage), directory.path
        client = StagingClient(messages.Settings(*directories, "job", has_several_nodes=True))
        client.send(messages.Secret(KEY))
        return client

    def stage(self, index: int) -> Path:
        return Path(self.directories[index].path)

    def lead(self, leader: int) -> StagingClient:
        self.term += 1
        peers = tuple(
            messages.PeerPlace(i, f"n{i}", "127.0.0.1", self.ports[i], "127.0.0.1")
            for i in sorted(self.living - {leader})
        )
        client = self.clients[leader]
        client.send(messages.Lead(self.term, leader, f"n{leader}", 0.0, peers))
        client.send(messages.Rounds((), hurry=True))
        return client

    def lose(self, index: int) -> None:
        """Kill a stager, and remove all that its node has in memory."""
        self.living.remove(index)
        self.clients[index].close()
        self.directories[index].remove()

    def close(self) -> None:
        for index in list(self.living):
            self.lose(index)


@pytest.fixture
def stagers(tmp_path):
    made = Stagers(tmp_path, 3)
    yield made
    made.close()


def test_without_its_agent_a_stager_ends_even_while_storage_stalls(stagers, monkeypatch):
    imports = "import time; from concurrent.futures import ThreadPoolExecutor"
    stalled = program_after(imports, "ThreadPoolExecutor().submit(time.sleep, 100)")
    monkeypatch.setattr(helper, "_PROGRAM", stalled)
    directory = stagers.directories[2]
    stagers.clients[2].close()
    stagers.clients[2] = client = stagers.start(directory)
    wait_for(client, messages.Listening)
    client._lines.close()
    assert client._process.wait(LIMIT) == 0
    assert not Path(directory.path).parent.exists()


def test_a_launch_that_loses_its_leader(stagers):
    leader = stagers.lead(0)
    leader.send(messages.Restore(1, nodes=(0, 1, 2)))
    assert wait_for(leader, messages.Restored).path == ""
    write(stagers.stage(2) / "step-1.pt", 1)
    (stagers.stage(2) / "results.data").write_bytes(os.urandom(5 << 20))
    (stagers.stage(1) / "log.txt").write_text("a log")
    path = str(stagers.storage / "step-1.pt")
    assert wait_for(leader, messages.Drained).path == path
    kept = stagers.stage(0).parent / "kept"
    eventually(lambda: [*kept.rglob("step-1.pt")])
    time.sleep(1.5)  # another look
    leader.send(messages.Search(5))
    found = wait_for(leader, messages.Searched).found
    assert [(each.path, each.lacks) for each in found] == [(path, None)]
    saved = picture(stagers.stage(2))
    stagers.lose(0)
    (stagers.storage / "step-1.pt").unlink()
    leader = stagers.lead(1)
    leader.send(messages.Restore(2, nodes=(1, 2)))
    restored = wait_for(leader, messages.Restored)
    assert restored.path == ""
    assert picture(stagers.stage(1))["step-1.pt"] == saved["step-1.pt"]
    leader.send(messages.Flush(3))
    assert wait_for(leader, messages.Flushed) == messages.Flushed(3, (), "")
    assert picture(stagers.storage) == {**saved, "log.txt": picture(stagers.stage(1))["log.txt"]}


def test_a_node_that_has_just_joined_leads_next(stagers):
    """A new leader knows which files on storage are of this launch, and keeps none aside."""
    leader = stagers.lead(0)
    leader.send(messages.Restore(1, nodes=(0, 1, 2)))
    wait_for(leader, messages.Restored)
    write(stagers.stage(0) / "last.pt", 1)
    assert wait_for(leader, messages.Drained).path == str(stagers.storage / "last.pt")
    stagers.lose(2)
    stagers.join(2)
    leader = stagers.lead(0)
    leader.send(messages.Restore(2, nodes=(0, 1, 2)))
    wait_for(leader, messages.Restored)
    stagers.lose(0)
    stagers.lose(1)
    leader = stagers.lead(2)
    leader.send(messages.Restore(3, nodes=(2,)))
    wait_for(leader, messages.Restored)
    write(stagers.stage(2) / "last.pt", 2)
    leader.send(messages.Flush(4))
    assert wait_for(leader, messages.Flushed) == messages.Flushed(4, (), "")
    assert picture(stagers.storage) == picture(stagers.stage(2))


def save(stage, step):
    """Save a checkpoint with a file that the view has as a whole, and one that its node copies."""
    write(stage / f"step-{step}" / "rank-0.pt", step)
    write(stage / f"step-{step}" / "rank-1.pt", step, more=os.urandom(3 << 20))
    (stage / f"step-{step}" / ".complete").touch()


@pytest.mark.parametrize("call", ["all", *CALLS])
def test_storage_that_hangs_holds_up_nothing_in_memory(tmp_path, monkeypatch, call):
    """The newest checkpoint is copied to another node, found, and restored after the loss of its
    own; it reaches storage later.
    """
    monkeypatch.setattr(helper, "ABANDON_LIMIT", 1)  # a killed stager cannot end during a call
    with stalling_storage(tmp_path) as storage, contextlib.closing(Stagers(tmp_path, 3)) as stagers:
        leader = stagers.lead(0)
        leader.send(messages.Restore(1, nodes=(0, 1, 2)))
        assert wait_for(leader, messages.Restored).path == ""
        save(stagers.stage(2), 1)
        wait_for(leader, messages.Drained)
        storage.stall(*() if call == "all" else (call,))
        save(stagers.stage(2), 2)
        kept = stagers.stage(0).parent / "kept"
        eventually(lambda: [*kept.rglob("step-2/.complete")])
        time.sleep(1.5)  # another look
        leader.send(messages.Search(2))
        found = wait_for(leader, messages.Searched).found
        newest = str(stagers.storage / "step-2")
        assert [(each.path, each.lacks) for each in found] == [(newest, None)]
        saved, killed = picture(stagers.stage(2) / "step-2"), stagers.clients[2]._process
        stagers.lose(2)
        leader = stagers.lead(0)
        leader.send(messages.Restore(3, nodes=(0, 1)))
        assert wait_for(leader, messages.Restored).path == ""
        assert [picture(stagers.stage(i) / "step-2") for i in (0, 1)] == [saved] * 2
        storage.release()
        killed.wait(LIMIT)
        leader.send(messages.Flush(4))
        assert wait_for(leader, messages.Flushed) == messages.Flushed(4, (), "")
        assert picture(storage.source / "ckpt" / "step-2") == saved
