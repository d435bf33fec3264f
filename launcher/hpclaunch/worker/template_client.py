"""The fork server's client of its template (`site/_hpclaunch_template.py` has the protocol)."""

import contextlib
import dataclasses
import enum
import json
import os
import select
import signal
import socket
import time
from typing import Any

from .json_lines import JsonLines

MOST_ENDS = 10  # of templates, which only fork: then something keeps killing them
MOST_RENEWALS = 6  # attempts to import a lesson, each without what the one before came to grief on
LIMIT = 15.0  # seconds that a start waits for a successor: workers would take no less themselves
IDLE_LIMIT = 600.0  # seconds for one for which nobody waits: it stands back behind the workers
MOST_BYTES = 1 << 20  # of a lesson
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
        self._steps = []  # of all lessons so far
        self._done: Any = frozenset()  # those that this template has done
        self._renewals = 0
        self.successor: Any = None
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

    def prepare(self, argv, environ, modules, own, steps):
        self._argv, self._environ, self._modules, self._own = argv, environ, [*modules], own
        self._steps = steps

    def learn(self, steps, own):
        """From workers of the round that runs. The next template is to know it as well."""
        known = {tuple(step) for step in self._steps}
        self._steps += [step for step in steps if tuple(step) not in known]
        self._own = sorted({*self._own, *own})
        todo = (step for step in self._steps if tuple(step) not in self._done)
        if any(step[0] == "import" and not self._avoids(step[1]) for step in todo):
            self._renewals = 0
            self.renew(idle=True)

    def _avoids(self, module):
        parts = module.split(".")
        return any(".".join(parts[:end]) in self._avoided for end in range(1, len(parts) + 1))

    # The successor

    @property
    def awaits_successor(self):
        """Whether a start is to wait for it: what it imports, the workers would have to."""
        return self.successor is not None and not self.successor.idle

    def renew(self, *, idle):
        """Begin to make a successor, if there is anything to import."""
        if self.successor is not None:
            self.drop_successor()
        self._renewals += 1
        if self.state is not State.READY or not self._steps or self._renewals > MOST_RENEWALS:
            return
        output = [os.memfd_create(name) for name in ("out", "err")]
        for old, new in zip(self._output, output, strict=True):
            os.sendfile(new, old, 0, 1 << 30)
        self.successor = Successor(output, self._steps, idle=idle)
        fds = [self.successor.theirs.fileno(), *output]
        steps = [s for s in self._steps if s[0] in ("set", "seed") or not self._avoids(s[1])]
        self.ask("renew", fds, idle=idle, steps=steps, own=self._own)
        self.successor.theirs.close()

    def hear_successor(self):
        """Take in what it tells; returns (module, why) of each that it must do without."""
        successor, passed = self.successor, []
        replies = successor.hear()
        for reply in replies or ():
            match reply:
                case {"event": "begun", "pid": pid}:
                    successor.pid = pid
                case {"event": "unsafe", "module": module, "why": why}:
                    successor.unsafe = module
                    passed.append((module, why))
                case {"event": "ready", "words": words}:
                    successor.words, successor.ready = words, True
        if replies is None:
            if not successor.unsafe:
                passed.append(("*", _last_line(successor.output[1]) or "it was killed"))
            self.drop_successor()
            if successor.unsafe not in ("", "*"):
                self._avoid(successor.unsafe)
                if self._renewals == MOST_RENEWALS - 1:
                    self._give_up(successor.unsafe)
                self.renew(idle=successor.idle)
        return passed

    def _avoid(self, module):
        """Of a package of which a second module is in the way, the whole."""
        package = module.partition(".")[0]
        again = any(known.partition(".")[0] == package for known in self._avoided)
        self._avoided.add(package if again else module)

    def _give_up(self, module):
        """So much is in the way that the rest is left to the workers."""
        names = [step[1] for step in self._steps]
        if module in names:
            del self._steps[names.index(module) :]

    def succeed(self):
        """The successor is the template from now on."""
        new, self.successor = self.successor, None
        old = self.pid
        self._channel.close()
        for fd in self._output:
            os.close(fd)
        self._channel, self._output = new.channel, new.output
        self.pid, self.words, self._done = new.pid, new.words, new.steps
        os.kill(old, signal.SIGKILL)

    def drop_successor(self):
        successor, self.successor = self.successor, None
        if successor is None:
            return
        successor.close()  # one that has not begun dies of it
        if successor.pid:
            try:
                os.kill(successor.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def unlearn(self, module):
        self._modules = [known for known in self._modules if known != module]
        self._avoided.add(module)

    def start(self):
        ours, theirs = socket.socketpair()
        self._channel = JsonLines(ours)
        self._done = frozenset()
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

    def leave(self):
        """Have it end, since nobody needs it for now."""
        self.drop_successor()
        if self.state in (State.READY, State.UNFIT):
            self.state = State.NONE
            self._channel.close()

    def end(self):
        """It is about to be killed, and no other is to follow it."""
        self._ends = MOST_ENDS

    def bury(self, how):
        """It has ended; returns why, from its last output."""
        self.drop_successor()
        failed = self.state is State.STARTING and how != UNSAFE
        self.torchless = how == NO_TORCH
        self.state = State.DEAD if failed else State.NONE
        self._channel.close()
        self._channel = None
        self.pid = 0
        said = _last_line(self._output[1])
        for fd in self._output:
            os.close(fd)
        self._ends += 1
        if self._ends > MOST_ENDS:
            self.state = State.DEAD
        self.why = said if said and failed else how
        return self.why


def _last_line(file):
    lines = os.pread(file, 1 << 16, 0).decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""


class Successor:
    """A fork of the template that imports what a lesson says, to take its place."""

    def __init__(self, output, steps, *, idle):
        ours, self.theirs = socket.socketpair()
        self.channel = JsonLines(ours)
        self.output = output
        self.steps = frozenset(map(tuple, steps))
        self.idle = idle  # nobody waits for it
        self.limit = time.monotonic() + (IDLE_LIMIT if idle else LIMIT)
        self.pid = 0
        self.words = []
        self.ready = False
        self.unsafe = ""  # the module that it must do without

    def fileno(self):
        return self.channel.fileno()

    def hear(self):
        """What it tells, None once it has ended."""
        try:
            return self.channel.receive()
        except (EOFError, OSError):
            return None

    def close(self):
        self.channel.close()
        for fd in self.output:
            os.close(fd)


class Pipe:
    """For one worker's lesson, which is a line. The worker opens it by its place in /proc, when it
    has something to tell: until then it has no descriptor that a script could find.
    """

    def __init__(self):
        self._reading, self.writing = os.pipe()
        self._data = b""

    def fileno(self):
        return self._reading

    def read(self):
        self._data = (self._data + os.read(self._reading, 1 << 16))[: MOST_BYTES + 1]

    @property
    def lesson(self):
        """Return its steps once all of them have come, else None. A broken worker may write
        anything: it has done nothing then.
        """
        if not self._data.endswith(b"\n") and len(self._data) <= MOST_BYTES:
            return None
        try:
            steps = json.loads(self._data)
        except (ValueError, RecursionError):
            return []
        return steps if isinstance(steps, list) and all(map(is_step, steps)) else []

    def close(self):
        os.close(self._reading)
        os.close(self.writing)


def is_step(step):
    """Return whether it has the form of a step: ["import", MODULE, FILE], ["set", NAME, None]."""
    if not isinstance(step, list) or len(step) != 3:
        return False
    return all(isinstance(part, str) for part in step[:2]) and isinstance(step[2], str | None)


@dataclasses.dataclass(frozen=True, slots=True)
class Restart:
    """What made a worker become a new interpreter: a change of the variable `name`, or a module
    of that name which is another one than the template's, in a line of a file."""

    kind: str
    name: str
    file: str
    line: int
    forked: bool  # in a process that the worker has forked, which cannot begin anew


class RestartReports:
    """A pipe to which workers write why they become new interpreters, each in one line. Like that
    of a lesson, they open it by its place in /proc."""

    def __init__(self):
        self._reading, self.writing = os.pipe()
        self._data = b""

    def fileno(self):
        return self._reading

    def read(self):
        """Return the reports that have come. A broken worker may write anything."""
        *lines, self._data = (self._data + os.read(self._reading, 1 << 16)).split(b"\n")
        self._data = self._data[-select.PIPE_BUF :]
        found = []
        for line in lines:
            with contextlib.suppress(ValueError, RecursionError, TypeError):
                report = Restart(*json.loads(line))
                types = [type(value) for value in dataclasses.astuple(report)]
                if types == [str, str, str, int, bool]:
                    found.append(report)
        return found


class Lessons:
    """What one or two workers of the round have imported."""

    def __init__(self):
        self.pipes = []

    def begin(self, workers):
        """The descriptors of this process that these workers are to open."""
        self._close()
        self.pipes = [Pipe() for _ in range(min(workers, 2))]
        return [pipe.writing for pipe in self.pipes]

    def take(self, ready):
        """(steps, variables that differ between the workers) once all have told, else None."""
        told = [pipe for pipe in self.pipes if pipe.fileno() in ready]
        for pipe in told:
            pipe.read()
        lessons = [pipe.lesson for pipe in self.pipes]
        if not told or None in lessons:
            return None
        self._close()
        return in_common(lessons[0], lessons[-1])

    def _close(self):
        for pipe in self.pipes:
            pipe.close()
        self.pipes = []


def in_common(one, other):
    """What both workers have done, in the order of the one, and the variables that they have set
    to values of their own.
    """
    both = {tuple(step) for step in other}
    sets = [[step[1:] for step in steps if step[0] == "set"] for steps in (one, other)]
    names = {name for steps in sets for name, _ in steps}
    values = [{name: [v for n, v in steps if n == name] for name in names} for steps in sets]
    differ = sorted(name for name in names if values[0][name] != values[1][name])
    return [step for step in one if tuple(step) in both], differ
