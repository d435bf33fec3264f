"""The guard of memory, on processes that save in /dev/shm. The control group that limits them is
made of files, to which the script itself writes how much is in use.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from hpclaunch.system.shared import memory_groups
from hpclaunch.system.staging import guard as guard_module
from hpclaunch.system.staging import messages
from hpclaunch.system.staging.guard import Guard
from hpclaunch.system.staging.requests import Requests
from hpclaunch.system.staging.room import is_in_memory
from hpclaunch.worker.json_lines import AgentChannel, JsonLines

pytestmark = pytest.mark.starts

MIB = 1 << 20
LIMIT, USED = 512 * MIB, 448 * MIB  # of the control group, in the beginning
LARGE = 4  # MiB
# It saves slowly, for a busy machine, into a file that the control group has no room for.
SAVES = f"""
import os, sys, time
usage = os.open(sys.argv[2], os.O_WRONLY)
with open(sys.argv[1], "wb") as file:
    for n in range(100):
        file.write(bytes({MIB}))
        file.flush()
        os.pwrite(usage, b"%020d" % ({USED} + (n + 1) * {MIB}), 0)
        time.sleep(0.05)
"""
WRITES_LITTLE = """
import sys, time
with open(sys.argv[1], "wb", buffering=0) as file:
    while True:
        file.write(b"a line of a log")
        time.sleep(0.02)
"""
HAS_SAVED = f"""
import sys, time
file = open(sys.argv[1], "wb")
file.write(bytes({LARGE * MIB}))
file.flush()
print(flush=True)
time.sleep(600)
"""
WRITES_IN_PLACE = HAS_SAVED.replace(
    "time.sleep(600)",
    f"while True: file.seek(0); file.write(bytes({LARGE * MIB})); file.flush(); time.sleep(0.02)",
)
READS = """
import sys, time
file = open(sys.argv[1], "rb")
print(flush=True)
time.sleep(600)
"""


class Node:
    """A staging directory, the use of memory, and processes. `sent` has what the guard has sent,
    and whether all processes lived then.
    """

    def __init__(self, group: Path, own: Path) -> None:
        self.usage, self.stage = group / "memory.current", own / "ckpt"
        self.use(USED)
        self.sent: list[tuple[messages.NoRoom, bool]] = []
        self.started: list[subprocess.Popen[str]] = []

    def use(self, size: int) -> None:
        self.usage.write_text(f"{size:020}")

    def run(self, body: str, *words: object) -> subprocess.Popen[str]:
        argv = [sys.executable, "-c", body, *map(str, words)]
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        self.started.append(process)
        return process

    def send(self, message: messages.NoRoom) -> None:
        self.sent.append((message, all(each.poll() is None for each in self.started)))


@pytest.fixture
def node(tmp_path, monkeypatch):
    own = Path(tempfile.mkdtemp(dir="/dev/shm"))
    (own / "ckpt" / "step-1").mkdir(parents=True)
    group = tmp_path / "cgroup"
    group.mkdir()
    (group / "memory.max").write_text(str(LIMIT))
    (group / "memory.stat").write_text("")
    (tmp_path / "own").write_text("0::/\n")
    monkeypatch.setattr(memory_groups, "ROOT", group)
    monkeypatch.setattr(memory_groups, "GROUP", tmp_path / "own")
    made = Node(group, own)
    yield made
    for process in made.started:
        process.kill()
        process.communicate()
    shutil.rmtree(own)  # ends the guard


def test_those_that_save_are_killed_before_memory_is_used_up(node, tmp_path, monkeypatch):
    monkeypatch.setattr(guard_module, "RECENT", 0.5)
    idle = node.run(HAS_SAVED, node.stage / "idle.pt")
    idle.stdout.readline()
    time.sleep(0.5)
    Guard(str(node.stage), node.send).start()
    path = node.stage / "step-1" / "rank-1.pt"
    saving = [node.run(WRITES_IN_PLACE, path)]
    saving[0].stdout.readline()
    spared = [idle, node.run(READS, path), node.run(WRITES_IN_PLACE, tmp_path / "elsewhere.pt")]
    for each in spared[1:]:
        each.stdout.readline()
    spared.append(node.run(WRITES_LITTLE, node.stage / "log.txt"))
    saving.append(node.run(SAVES, node.stage / "step-1" / "rank-0.pt", node.usage))
    assert [each.wait(60) for each in saving] == [-signal.SIGKILL] * 2
    assert USED < int(node.usage.read_text()) < LIMIT
    assert [each.poll() for each in spared] == [None] * 4
    message, lived = node.sent[0]
    assert lived, "a process was killed before the agent was told why"
    assert message.why == (
        "a save did not fit into the memory limit of this job (cgroup), 512 MiB: the process that "
        "saved was killed before the kernel would kill one"
    )


def test_while_nothing_is_saved_no_process_is_killed(node):
    """Nor while a file is written in place, though memory is full: other programs have filled it.
    The file system is not looked at, since other tests save there, too.
    """

    class Still(Guard):
        def _used(self):
            return USED

    node.use(LIMIT)
    Still(str(node.stage), node.send).start()
    process = node.run(WRITES_IN_PLACE, node.stage / "step-1.pt")
    process.stdout.readline()
    time.sleep(10 * guard_module.PERIOD)
    assert process.poll() is None
    assert node.sent == []


def test_on_a_disk_there_is_nothing_to_guard(node, tmp_path):
    if is_in_memory(str(tmp_path)):
        pytest.skip("this directory is in memory")
    node.use(LIMIT)
    Guard(str(tmp_path), node.send)._run()  # returns


def test_replies_of_several_threads_are_not_mixed():
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    requests = Requests(AgentChannel(str(ours.detach())))
    sent = [messages.NoRoom(letter * 30_000) for letter in "abcd"]
    threads = [
        threading.Thread(target=lambda m=m: [requests.send(m) for _ in range(20)], daemon=True)
        for m in sent
    ]
    for thread in threads:
        thread.start()
    reading, found = JsonLines(theirs), []
    while len(found) < 80:
        found += reading.receive()
    for thread in threads:
        thread.join()
    reading.close()
    os.close(requests._waking)
    assert all(found.count(message.encoded()) == 20 for message in sent)
