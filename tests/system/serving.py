"""A fork server with real processes, for tests: requests to it and its events."""

import select
import signal
import sys
import time

import psutil

from hpclaunch.system.processes.fork_server_client import ForkServerClient
from hpclaunch.worker.fork_server_messages import (
    Kill,
    KillIdle,
    Listen,
    Progress,
    Query,
    SignalLeft,
    Start,
    Worker,
)
from living import living

LIMIT = 120  # seconds; far more than any of this takes


class Client:
    """A fork server and its events so far, as in JSON, but for its regular reports of progress."""

    def __init__(self, tmp_path):
        self.server = ForkServerClient()
        self.tmp_path = tmp_path
        self.events = []

    def start(self, *commands, env=None, **more):
        self.ask(*commands, env=env, **more)
        for _ in commands:
            self.until("started")

    def ask(self, *commands, env=None, store=False, warm=False, learn=False, cpus=()):
        """Request these workers, without waiting for them; return the store's port."""
        self.server.send(Listen(loopback=True))
        port = self.until("listening")["port"]
        workers = [
            Worker(
                rank,
                [word.replace("PORT", str(port)) for word in argv],
                {"RANK": str(rank)},
                str(self.path(rank, "out")),
                str(self.path(rank)),
                cpus=[*cpus],
            )
            for rank, argv in enumerate(commands)
        ]
        errors = str(self.tmp_path / "store.err") if store else ""
        self.server.send(start_of(workers, env or {}, store=errors, warm=warm, learn=learn))
        return port

    def kill_idle(self):
        """Have idle workers killed; return after the fork server has looked at all, since two looks
        in a row would find everybody idle.
        """
        self.server.send(KillIdle())
        self.server.send(Query("vitals", 0))
        self.until("answer")

    def end_round(self):
        """Kill the workers and the processes that they leave behind."""
        self.server.send(Kill())
        self.server.send(SignalLeft(signal.SIGKILL))
        self.until("gone")

    def path(self, rank, kind="err"):
        return self.tmp_path / f"rank-{rank}.{kind}"

    def until(self, event):
        """Wait for the next event of this kind; earlier ones of other kinds stay in `events`."""
        seen = 0
        deadline = time.monotonic() + LIMIT
        while time.monotonic() < deadline:
            for reply in self.events[seen:]:
                seen += 1
                if reply["event"] == event:
                    self.events.remove(reply)
                    return reply
            if select.select([self.server], [], [], 0.1)[0]:
                self.hear()
        raise AssertionError(f"no {event} within {LIMIT} s, only {self.events}")

    def hear(self):
        """Add the events that have arrived to `events`."""
        events = [event for event in self.server.hear() if not isinstance(event, Progress)]
        self.events += [{"event": event.op, **event.fields()} for event in events]

    @property
    def pid(self):
        return self.server._process.pid

    def others(self):
        """Return the fork server's children, the template first."""
        return psutil.Process(self.pid).children()


def start_of(workers, env, *, store="", warm=False, learn=False):
    """Return the request to start these workers, which report no progress."""
    more = {"peers": [], "progress": False, "terminals": {}, "size": (0, 0), "pipes": False}
    return Start(workers, env, store, warm=warm, learn=learn, **more)


def sh(script):
    return ["sh", "-c", script]


def python(script):
    return [sys.executable, "-u", "-c", script]


def eventually(condition):
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.01)


def wait_for(path):
    deadline = time.monotonic() + LIMIT
    while not path.exists() or not path.read_text().endswith("\n"):
        assert time.monotonic() < deadline, f"{path} was never written"
        time.sleep(0.01)
    return path.read_text()


def gone(pid):
    """Return True once a process has ended."""
    eventually(lambda: not living([pid]))
    return True
