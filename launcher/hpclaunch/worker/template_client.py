"""The fork server's side of its template (`site/_hpclaunch_template.py`)."""

from __future__ import annotations

import contextlib
import enum
import os
import select
import signal
import socket
import time
from collections.abc import Iterable, Mapping, Sequence

from .fork_server_messages import Prepare, Step, Worker
from .json_lines import JsonLines
from .lessons import Lesson
from .messages import decode
from .processes import Spawner
from .template_messages import NO_TORCH, REPLIES, Begun, Fork, Load, Ready, Renew, Reply, Unsafe

MOST_ENDS = 10  # of templates; after more, something keeps killing them
MOST_RENEWALS = 6  # attempts to import a lesson, each without the module that ended the one before
LIMIT = 15.0  # seconds that a start waits for a successor, whose imports each worker would repeat
IDLE_LIMIT = 600.0  # seconds for a successor that no start waits for
LEFT = 0  # exit code of a template that leaves, perhaps because of a module that it has named


class State(enum.Enum):
    NONE = "none"  # not started, or not needed so far
    STARTING = "starting"  # it imports torch
    READY = "ready"
    UNFIT = "unfit"  # has torch, but a worker forked from it would differ from a fresh one
    DEAD = "dead"  # could not import torch


class TemplateClient:
    """At most one template at a time; `start` makes one, also after the last one was killed."""

    def __init__(self, spawner: Spawner, blocked: Iterable[int]) -> None:
        """`blocked` are signals to block in the template beside those that the user has blocked."""
        self._spawner = spawner
        self._blocked = blocked
        self._argv: Sequence[str] = ()
        self._environ: Mapping[str, str] = {}
        self._modules: list[str] = []  # to import beside torch
        self._own: list[str] = []  # variables of which each worker has a value of its own
        self._avoided: set[str] = set()  # modules that it cannot import
        self._steps: Lesson = []  # of all lessons so far
        self._renewals = 0
        self.process: TemplateProcess | None = None
        self.successor: Successor | None = None
        self._ends = 0
        self.words: list[str] = []  # the workers' command lines up to the script
        self._directory = ""  # in which it was started
        self.why = ""  # why the last template ended
        self.torchless = False  # its Python has no torch
        self.state = State.NONE

    @property
    def pid(self) -> int:
        return 0 if self.process is None else self.process.pid

    def fileno(self) -> int:
        return -1 if self.process is None else self.process.fileno()

    def prepare(self, request: Prepare) -> None:
        self._argv, self._environ = request.argv, os.environ | request.env
        self._modules, self._own, self._steps = request.modules, request.own, [*request.steps]

    def learn(self, steps: Lesson, own: Iterable[str]) -> None:
        """Have the next template do what workers of this round have done."""
        known = {*self._steps}
        self._steps += [step for step in steps if step not in known]
        self._own = sorted({*self._own, *own})
        done = frozenset() if self.process is None else self.process.steps
        todo = (step for step in self._steps if step not in done)
        if any(step.kind == "import" and not self._avoids(step.name) for step in todo):
            self._renewals = 0
            self.renew(idle=True)

    def _avoids(self, module: str) -> bool:
        parts = module.split(".")
        return any(".".join(parts[:end]) in self._avoided for end in range(1, len(parts) + 1))

    # The successor

    def successors(self) -> list[Successor]:
        """Return the successor that is being made, if any."""
        return [] if self.successor is None else [self.successor]

    @property
    def awaits_successor(self) -> bool:
        """Whether a start is to wait for the successor, whose imports each worker would repeat."""
        return self.successor is not None and not self.successor.idle

    def renew(self, *, idle: bool) -> None:
        """Begin to make a successor, if there is anything for it to do."""
        self.drop_successor()
        self._renewals += 1
        if self.state is not State.READY or not self._steps or self._renewals > MOST_RENEWALS:
            return
        assert self.process is not None, "a template is ready"
        try:
            with contextlib.ExitStack() as undo:
                output = _memory_files(undo)
                for old, new in zip(self.process.output, output, strict=True):
                    os.sendfile(new, old, 0, 1 << 30)
                self.successor = Successor(output, self._steps, idle=idle)
                undo.pop_all()
        except OSError:
            return  # too many open files: the workers do the steps themselves
        fds = [self.successor.theirs.fileno(), *output]
        steps = [s for s in self._steps if s.kind in ("set", "seed") or not self._avoids(s.name)]
        self.ask(Renew(steps, self._own, idle), fds)
        self.successor.theirs.close()

    def hear_successor(self) -> list[tuple[str, str]]:
        """Act on the successor's replies. Return (module, why) of each that it must do without."""
        successor = self.successor
        passed: list[tuple[str, str]] = []
        if successor is None:
            return passed
        replies = successor.replies()
        for reply in replies or ():
            match reply:
                case Begun(pid):
                    successor.pid = pid
                case Unsafe(module, why):
                    successor.unsafe = module
                    passed.append((module, why))
                case Ready():
                    successor.ready = True
                case _:
                    raise AssertionError(f"a successor does not answer {reply.op}")
        if replies is None:
            if not successor.unsafe:
                passed.append(("*", successor.last_line() or "it was killed"))
            self.drop_successor()
            if successor.unsafe not in ("", "*"):
                self._avoid(successor.unsafe)
                if self._renewals == MOST_RENEWALS - 1:
                    self._give_up(successor.unsafe)
                self.renew(idle=successor.idle)
        return passed

    def _avoid(self, module: str) -> None:
        """Do without a module, or without its whole package if another module of it is avoided."""
        package = module.partition(".")[0]
        again = any(known.partition(".")[0] == package for known in self._avoided)
        self._avoided.add(package if again else module)

    def _give_up(self, module: str) -> None:
        """Leave this module and all later steps to the workers, after too many attempts."""
        names = [step.name for step in self._steps]
        if module in names:
            del self._steps[names.index(module) :]

    def succeed(self) -> None:
        """Make the successor, which is ready, the template."""
        assert self.process is not None, "the template has forked a successor"
        self.process.close()
        os.kill(self.process.pid, signal.SIGKILL)
        self.process, self.successor = self.successor, None

    def drop_successor(self) -> None:
        successor, self.successor = self.successor, None
        if successor is None:
            return
        successor.close()  # which ends one that has not begun
        if successor.pid:
            try:
                os.kill(successor.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def unlearn(self, module: str) -> None:
        self._modules = [known for known in self._modules if known != module]
        self._avoided.add(module)

    def start(self) -> None:
        """Raises OSError if the kernel grants no process or descriptor; nothing is started then."""
        with contextlib.ExitStack() as undo:
            ours, theirs = map(undo.enter_context, socket.socketpair())
            # The output of imports is given to every worker, as if it had imported them itself.
            output = _memory_files(undo)
            fds = [theirs.fileno(), *output]
            words = ",".join(map(str, [os.getpid(), *fds]))
            environ = {**self._environ, "HPCLAUNCH_TEMPLATE": words}
            for fd in fds:
                os.set_inheritable(fd, True)
            pid = self._spawner.spawn(self._argv, environ, *output, blocked=self._blocked)
            undo.pop_all()
        self._directory = _working_directory()
        for fd in output:
            os.set_inheritable(fd, False)
        theirs.close()
        self.process = TemplateProcess(ours, output, pid)
        self.state = State.STARTING
        blocked = sorted(self._spawner.blocked)
        self.ask(Load(self._modules, {**self._environ}, self._own, blocked))

    def ask(self, request: Load | Fork | Renew, fds: Sequence[int] = ()) -> None:
        assert self.process is not None, "a template is asked while there is one"
        with contextlib.suppress(OSError):  # it is dead, as its exit is going to show
            self.process.channel.send(request.encoded(), fds)

    def receive(self, wait: float = 0.0) -> list[Reply]:
        """Return the replies that are there after at most `wait` seconds; [] also once the template
        has ended."""
        if self.process is None:
            return []
        poll = select.poll()
        poll.register(self.process, select.POLLIN)
        return (poll.poll(1000 * wait) and self.process.replies()) or []

    def fits(self, workers: Iterable[Worker]) -> bool:
        """Return whether these workers run the script of the template, which has its absolute path.
        If the working directory has been renamed, that path may be wrong.
        """
        directory = _working_directory()
        was_renamed = bool(directory) and directory != self._directory
        return not was_renamed and all(w.argv[: len(self.words)] == self.words for w in workers)

    def leave(self) -> None:
        """Have the template end, since nobody needs it for now."""
        self.drop_successor()
        if self.state in (State.READY, State.UNFIT) and self.process is not None:
            self.state = State.NONE
            self.process.channel.close()

    def end(self) -> None:
        """Let no other template follow this one, which is about to be killed."""
        self._ends = MOST_ENDS

    def ended(self, code: int, signum: int) -> bool:
        """Record the end of the template. Return whether it was killed or has failed; `why` then
        has its last output, or how it has ended."""
        self.drop_successor()
        has_left = code == LEFT and not signum
        failed = self.state is State.STARTING and not has_left
        self.torchless = code == NO_TORCH and not signum
        self.state = State.DEAD if failed else State.NONE
        assert self.process is not None, "it was started"
        last = self.process.last_line()
        self.process.close()
        self.process = None
        self._ends += 1
        if self._ends > MOST_ENDS:
            self.state = State.DEAD
        how = signal.Signals(signum).name if signum else f"exit code {code}"
        self.why = last if last and failed else how
        return not has_left


def _working_directory() -> str:
    """Return the absolute path of the working directory; "" if it was removed."""
    with contextlib.suppress(OSError):
        return os.getcwd()
    return ""


def _memory_files(undo: contextlib.ExitStack) -> list[int]:
    """Return new files for stdout and stderr, which `undo` closes."""
    files: list[int] = []
    for name in ("out", "err"):
        files.append(os.memfd_create(name))
        undo.callback(os.close, files[-1])
    return files


class TemplateProcess:
    """A process that forks workers, or is to do so."""

    def __init__(
        self, channel: socket.socket, output: Sequence[int], pid: int, steps: Iterable[Step] = ()
    ) -> None:
        self.channel = JsonLines(channel)
        self.output = output  # its files for stdout and stderr
        self.pid = pid
        self.steps = frozenset(steps)  # of lessons, which it has done

    def fileno(self) -> int:
        return self.channel.fileno()

    def replies(self) -> list[Reply] | None:
        """Return the replies that are complete, after a wait for data; None once it has ended."""
        try:
            return [decode(REPLIES, raw) for raw in self.channel.receive()]
        except (EOFError, OSError):
            return None

    def last_line(self) -> str:
        """Return the last line that it has written to stderr; "" if there is none."""
        lines = os.pread(self.output[1], 1 << 16, 0).decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    def close(self) -> None:
        self.channel.close()
        for fd in self.output:
            os.close(fd)


class Successor(TemplateProcess):
    """A fork of the template that does the steps of a lesson, to take the template's place."""

    def __init__(self, output: Sequence[int], steps: Lesson, *, idle: bool) -> None:
        ours, self.theirs = socket.socketpair()
        super().__init__(ours, output, 0, steps)
        self.idle = idle  # no start waits for it
        self.limit = time.monotonic() + (IDLE_LIMIT if idle else LIMIT)
        self.ready = False
        self.unsafe = ""  # the module that it must do without
