"""Programs with the real torch, forked from one process that has imported it.

Each program is a process of its own; only the import is shared. `Forks` starts workers with
hpclaunch's hooks: each runs a text as its script, and ends like a worker that is forked from the
template. `Torchruns` starts torchrun, for comparisons.
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
    """A process that has imported torch and forks workers."""

    def __init__(self):
        self._begin(WORKERS, environment(PYTHONPATH=HOOKS, HPCLAUNCH_STORE="127.0.0.1:1"))

    def _begin(self, program, environ):
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", program, str(theirs.fileno())],
                env=environ,
                pass_fds=[theirs.fileno()],
            )
        self._codes = {}  # {pid: exit code} of workers that have ended

    def start(self, text, *, cwd=None, env=(), is_given_input=True):
        """Start a program with this text. Without input, it reads from /dev/null."""
        pipes = [os.pipe() if is_given_input else no_input(), os.pipe(), os.pipe()]
        theirs = [pipes[0][0], pipes[1][1], pipes[2][1]]
        request = {"text": text, "cwd": str(cwd or Path.cwd()), "env": dict(env)}
        socket.send_fds(self._socket, [json.dumps(request).encode()], theirs)
        for fd in theirs:
            os.close(fd)
        while "begun" not in (reply := self._hear()):
            pass
        return ForkedWorker(self, reply["begun"], [pipes[0][1], pipes[1][0], pipes[2][0]])

    def code(self, pid, timeout):
        """Return the exit code of a worker, or None if it does not end within so many seconds."""
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

    @contextlib.contextmanager
    def not_waiting(self):
        """Leave workers that end as zombies meanwhile."""
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

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


def no_input():
    """Return two descriptors of /dev/null in place of a pipe's ends."""
    return tuple(os.open(os.devnull, os.O_RDWR) for _ in range(2))  # like subprocess.DEVNULL


class Torchruns(Forks):
    """A process that has imported torch's launchers and forks processes that run them."""

    def __init__(self):
        self._begin(LAUNCHERS, environment())

    def launch(self, *words, env, module="torch.distributed.run", **more):
        """Start `torchrun` with these words and only the variables in `env`."""
        text = f"import {module} as launcher, sys\n"
        text += f"sys.argv = {['torchrun', *map(str, words)]}\nsys.exit(launcher.main())\n"
        return self.start(text, env=env, **more)


class ForkedWorker:
    """The part of `subprocess.Popen` that the tests use, with pipes and text."""

    def __init__(self, forks, pid, pipes):
        self._forks, self.pid = forks, pid
        self.stdin, self.stdout, self.stderr = map(open, pipes, "wrr")
        self.returncode = None
        self._outputs = []

    def poll(self):
        self.returncode = self._forks.code(self.pid, 0)
        return self.returncode

    def wait(self, timeout=LIMIT):
        self.returncode = self._forks.code(self.pid, timeout)
        assert self.returncode is not None, f"the worker has not ended within {timeout} s"
        return self.returncode

    def kill(self):
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def communicate(self, given="", timeout=LIMIT):
        """Write a short input; return the rest of stdout and stderr, which must be short."""
        with contextlib.suppress(BrokenPipeError):
            if given:
                self.stdin.write(given)
            self.stdin.close()
        for stream in (self.stdout, self.stderr):
            if not stream.closed:
                with stream:
                    self._outputs.append(stream.read())
        self.wait(timeout)
        return self._outputs


SERVES = """
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
"""
RUNS = """
exec(compile(request["text"], "train.py", "exec"), {"__name__": "__main__"})
"""
WORKERS = (
    """
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
"""
    + SERVES
    + """
os.environ.update(request["env"])
progress.begin()
atexit.register(finalizing.at_exit)
"""
    + RUNS
)
LAUNCHERS = (
    """
import gc, json, os, select, socket, sys
known = {**os.environ}
import torch.distributed.launch
changes = {name: value for name, value in os.environ.items() if known.get(name) != value}
gc.freeze()  # what is imported is not collected again at the end of each
"""
    + SERVES
    + """
os.environ.clear()
os.environ.update(request["env"] | changes)
"""
    + RUNS
)
