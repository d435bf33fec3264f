"""Workers with the real torch, forked from one process that has imported it.

Each is a process of its own, below the hooks, runs a text as its script, and ends as workers do
that are forked from the template; only the import is shared by all. For tests of what happens once
torch is there.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from hpclaunch.system.processes.fork_server_client import SITE
from surroundings import environment

HOOKS = Path(SITE)
LIMIT = 120  # seconds; far more than any of this takes


class Forks:
    """The process that has torch."""

    def __init__(self):
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", SERVES, str(theirs.fileno())],
                env=environment(PYTHONPATH=HOOKS, HPCLAUNCH_STORE="127.0.0.1:1"),
                pass_fds=[theirs.fileno()],
            )
        self._codes = {}  # {pid: exit code} of workers that have ended

    def start(self, text, *, cwd=None, env=()):
        pipes = [os.pipe() for _ in range(3)]
        theirs = [pipes[0][0], pipes[1][1], pipes[2][1]]
        request = {"text": text, "cwd": str(cwd or Path.cwd()), "env": dict(env)}
        socket.send_fds(self._socket, [json.dumps(request).encode()], theirs)
        for fd in theirs:
            os.close(fd)
        while "begun" not in (reply := self._hear()):
            pass
        return ForkedWorker(self, reply["begun"], [pipes[0][1], pipes[1][0], pipes[2][0]])

    def code(self, pid, timeout):
        """Return the exit code of a worker; None if it does not end within so many seconds."""
        deadline = time.monotonic() + timeout
        while pid not in self._codes:
            self._socket.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                self._hear()
            except TimeoutError:
                return None
            finally:
                self._socket.settimeout(None)
        return self._codes[pid]

    def _hear(self):
        reply = json.loads(self._socket.recv(1 << 16))
        if "begun" in reply:
            self._codes.pop(reply["begun"], None)  # of an earlier process with this pid
        if "ended" in reply:
            self._codes[reply["ended"]] = reply["code"]
        return reply

    def end(self):
        self._socket.close()
        assert self._process.wait(LIMIT) == 0


class ForkedWorker:
    """The part of `subprocess.Popen` that the tests use, with pipes and text."""

    def __init__(self, forks, pid, pipes):
        self._forks, self.pid = forks, pid
        self.stdin, self.stdout, self.stderr = map(open, pipes, "wrr")
        self.returncode = None
        self._said = []

    def poll(self):
        self.returncode = self._forks.code(self.pid, 0)
        return self.returncode

    def wait(self, timeout=LIMIT):
        self.returncode = self._forks.code(self.pid, timeout)
        assert self.returncode is not None, "it has not ended"
        return self.returncode

    def kill(self):
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def communicate(self, timeout=LIMIT):
        """Return the rest of its output, of which little may be in stderr."""
        with contextlib.suppress(BrokenPipeError):
            self.stdin.close()
        for stream in (self.stdout, self.stderr):
            if not stream.closed:
                with stream:
                    self._said.append(stream.read())
        self.wait(timeout)
        return self._said


SERVES = """
import atexit, gc, json, os, select, socket, sys
gc.disable()  # what is imported stays, and collections cost a tenth of the time
from _hpclaunch_hooks import beside, progress
finalizing = beside("_hpclaunch_finalizing")
is_plain = finalizing.is_plain()
import torch._dynamo
if is_plain:
    finalizing.torch_is_imported()
gc.enable()
finalizing.freeze()
asks, running = socket.socket(fileno=int(sys.argv[1])), {}
while True:
    ready, _, _ = select.select([asks, *running], [], [])
    for ended in running.keys() & set(ready):
        os.close(ended)
        pid, status = os.waitpid(running.pop(ended), 0)
        code = os.waitstatus_to_exitcode(status)
        asks.send(json.dumps({"ended": pid, "code": code}).encode())
    if asks in ready:
        request, fds, _, _ = socket.recv_fds(asks, 1 << 16, 3)
        if not request:
            sys.exit()
        pid = os.fork()
        if not pid:
            break
        running[os.pidfd_open(pid)] = pid
        asks.send(json.dumps({"begun": pid}).encode())
        for fd in fds:
            os.close(fd)
os.setsid()
asks.close()
for stream, fd in enumerate(fds):
    os.dup2(fd, stream)
for fd in (*fds, *running):
    os.close(fd)
request = json.loads(request)
os.chdir(request["cwd"])
os.environ.update(request["env"])
progress.begin()
atexit.register(finalizing.at_exit)
exec(compile(request["text"], "train.py", "exec"), {"__name__": "__main__"})
"""
