"""Helper processes, whatever the agent has open when it starts them."""

import os
import resource
import time

import pytest

from hpclaunch.system.shared.helper import Helper
from surroundings import entered

LIMIT = 20  # seconds
ECHO = """
import os, select, socket
def main(fd, blocked):
    select.select([int(fd)], [], [])
    for inherited in map(int, os.listdir("/proc/self/fd")):
        assert inherited < 16, inherited
    channel = socket.socket(fileno=int(fd))
    channel.sendall(channel.recv(1000))
"""


@pytest.fixture
def many_files():
    """More of them are open than select() takes, and than a user's own limit usually allows."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (2048, limits[1]))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1200)]
    yield
    for fd in files:
        os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.skipif("descriptors" in entered, reason="no process can have as many files")
def test_an_agent_with_many_open_files(tmp_path, many_files):
    (tmp_path / "echo.py").write_text(ECHO)
    helper = Helper("echo", paths=[str(tmp_path)])
    helper.ask(word="hello")
    replies, limit = [], time.monotonic() + LIMIT
    while not replies and not helper.lost and time.monotonic() < limit:
        replies = helper.receive()
        time.sleep(0.01)
    helper.end(LIMIT)
    assert replies == [{"word": "hello"}]
