"""The fork server's client of its template (`site/_hpclaunch_template.py` has the protocol)."""

import enum
import os
import select
import socket
from typing import Any

from .json_lines import JsonLines

MOST_ENDS = 10  # of templates, which only fork: then something keeps killing them
UNSAFE = "exit code 0"  # it asks for a successor without the module that it has named
NO_TORCH = "exit code 3"


class State(enum.Enum):
    NONE = "none"  # not started, or not needed so far
    STARTING = "starting"  # it imports torch
    READY = "ready"
    UNFIT = "unfit"  # has torch, but a worker forked from it would differ from a fresh one
    DEAD = "dead"  # could not import torch


class TemplateClient:
    """At most one template at a time; `start` makes one, also after the last one was killed."""

    def __init__(self, spawner, deaf):
        self._spawner = spawner
        self._deaf = deaf
        self._argv: Any = None
        self._environ: Any = None
        self._modules = []  # to import beside torch
        self._own = []  # variables of which each worker has a value of its own
        self._avoided = set()  # modules that it cannot import
        self._channel: Any = None
        self._output: Any = ()
        self._ends = 0
        self.pid = 0
        self.words = []  # the workers' command lines up to the script
        self.why = ""  # the last one ended
        self.torchless = False  # its Python has no torch
        self.state = State.NONE

    def fileno(self):
        return -1 if self._channel is None else self._channel.fileno()

    def prepare(self, argv, environ, modules, own):
        self._argv, self._environ, self._modules, self._own = argv, environ, [*modules], own

    def learn(self, modules):
        """Modules to import from now on; returns those that are new."""
        new = [m for m in modules if m not in self._modules and m not in self._avoided]
        self._modules += new
        return new

    def unlearn(self, module):
        self._modules = [known for known in self._modules if known != module]
        self._avoided.add(module)

    def start(self):
        ours, theirs = socket.socketpair()
        self._channel = JsonLines(ours)
        # The output of imports is given to every worker, as if it had imported them itself.
        self._output = [os.memfd_create(name) for name in ("out", "err")]
        fds = [theirs.fileno(), *self._output]
        words = ",".join(map(str, [os.getpid(), *fds]))
        environ = {**self._environ, "HPCLAUNCH_TEMPLATE": words}
        for fd in fds:
            os.set_inheritable(fd, True)
        self.pid = self._spawner.spawn(self._argv, environ, *self._output, deaf=self._deaf)
        for fd in self._output:
            os.set_inheritable(fd, False)
        theirs.close()
        self.load()

    def load(self):
        """Have it import its modules; those that it has already cost nothing."""
        self.state = State.STARTING
        blocked = list(self._spawner.blocked)
        own, env = self._own, self._environ
        self.ask("load", modules=self._modules, env=env, own=own, blocked=blocked)

    def ask(self, op, fds=(), **fields):
        try:
            self._channel.send({"op": op, **fields}, fds)
        except OSError:
            pass  # it is dead: its exit tells

    def receive(self, wait=0.0):
        """The replies that are there after at most `wait` seconds; [] also once it has ended."""
        if self._channel is None or not select.select([self._channel], [], [], wait)[0]:
            return []
        try:
            return self._channel.receive()
        except (EOFError, OSError):
            return []

    def fits(self, workers):
        return all(worker["argv"][: len(self.words)] == self.words for worker in workers)

    def end(self):
        """It is about to be killed, and no other is to follow it."""
        self._ends = MOST_ENDS

    def bury(self, how):
        """It has ended; returns why, from its last output."""
        failed = self.state is State.STARTING and how != UNSAFE
        self.torchless = how == NO_TORCH
        self.state = State.DEAD if failed else State.NONE
        self._channel.close()
        self._channel = None
        self.pid = 0
        os.lseek(self._output[1], 0, os.SEEK_SET)
        said = os.read(self._output[1], 1 << 16).decode(errors="replace").strip()
        for fd in self._output:
            os.close(fd)
        self._ends += 1
        if self._ends > MOST_ENDS:
            self.state = State.DEAD
        self.why = said.splitlines()[-1] if said and failed else how
        return self.why


class Lessons:
    """What the first worker has imported, which it tells through a pipe."""

    def __init__(self):
        self._fd = -1

    def fileno(self):
        """-1 when none are awaited."""
        return self._fd

    def begin(self):
        """The worker's end of the pipe, to be closed here once the worker has it."""
        self._close()
        self._fd, writing = os.pipe()
        return writing

    def take(self):
        """The names come all at once, in less than a pipe holds, or never."""
        names = os.read(self._fd, 1 << 16).decode("utf-8", "surrogatepass").split()
        self._close()
        return names

    def _close(self):
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1
