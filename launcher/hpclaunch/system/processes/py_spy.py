"""The process that asks py-spy for the native stacks of workers. py-spy reads large libraries, and
each worker stands still meanwhile.

It answers each request with what py-spy has written in time, or why it could not. Standard library
only.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence

from hpclaunch.system.shared.helper import Helper
from hpclaunch.system.shared.prctl import die_with
from hpclaunch.worker.json_lines import AgentChannel, AgentGoneError

LIMIT = 1.0  # seconds, for all of them, this helper's start too: the head waits for the evidence
MOST = 4  # at a time


def path_of_py_spy() -> str | None:
    """None without it. As shutil.which, which takes longer to import."""
    paths = (os.path.join(directory, "py-spy") for directory in os.get_exec_path())
    return next((p for p in paths if os.path.isfile(p) and os.access(p, os.X_OK)), None)


class PySpyClient(Helper):
    """`request`, and then `receive` once it is readable."""

    has_children = True
    does = "runs py-spy"

    def __init__(self, py_spy: str) -> None:
        super().__init__("hpclaunch.system.processes.py_spy", str(os.getpid()), py_spy)

    def request(self, pids: Sequence[int]) -> None:
        """The first ones first, should the time not be enough for all."""
        self.ask(pids=list(pids), until=time.monotonic() + LIMIT)


def main(fd: str, _blocked: str, agent: str, py_spy: str) -> None:
    if not die_with(int(agent)):
        return
    channel = AgentChannel(fd)
    try:
        while True:
            for request in channel.read():
                channel.tell("stacks", texts=stacks_of(py_spy, request["pids"], request["until"]))
    except AgentGoneError:
        pass


def stacks_of(py_spy: str, pids: Sequence[int], until: float) -> list[str]:
    """What it says of each, the first ones first; "" where the time was over."""
    from concurrent.futures import ThreadPoolExecutor  # not for the agent, which imports this file

    def stack_of(pid: int) -> str:
        command = [py_spy, "dump", "--native", "--pid", str(pid)]
        left = until - time.monotonic()
        if left <= 0:
            return ""
        try:
            done = subprocess.run(
                command, capture_output=True, stdin=subprocess.DEVNULL, timeout=left
            )
        except subprocess.TimeoutExpired:
            return ""
        except OSError as e:
            return f"{py_spy}: {e.strerror}\n"
        return (done.stdout or done.stderr).decode(errors="replace")

    with ThreadPoolExecutor(MOST) as pool:
        return list(pool.map(stack_of, pids))
