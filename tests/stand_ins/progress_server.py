"""The part of the fork server that reads the workers' progress pages, for tests of workers."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time

from forks_of_torch import HOOKS, LIMIT

from hpclaunch.worker.evidence import Evidence
from hpclaunch.worker.progress_watch import ProgressWatch
from hpclaunch.worker.site._hpclaunch_layout import PHASES
from surroundings import environment


class ProgressServer:
    def __init__(self):
        self.watch = ProgressWatch()
        self._evidence = Evidence(self.watch)
        self.processes = []

    def start(self, command, cwd, *, workers=1, environ=(), forks=None):
        """Start workers; return the first one.

        The command may be the text of a script; with `forks`, it must be.
        """
        if forks is None and isinstance(command, str):
            command = python(cwd, command)
        for rank, variables in self.watch.begin(range(workers)).items():
            own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": workers, **dict(environ)}
            own = {name: str(value) for name, value in own.items()} | variables
            if forks is None:
                process = self._new(command, cwd, own)
            else:
                process = forks.start(command, cwd=cwd, env=own)
            self.processes.append(process)
        return self.processes[0]

    def _new(self, command, cwd, own):
        return subprocess.Popen(
            command,
            cwd=cwd,
            env=environment(PYTHONPATH=HOOKS, HPCLAUNCH_STORE="127.0.0.1:1", **own),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, command, cwd, **how):
        """Start workers and wait for their end; return what each has written to stdout."""
        self.start(command, cwd, **how)
        ends = [process.communicate(timeout=LIMIT) for process in self.processes]
        codes = [process.returncode for process in self.processes]
        assert not any(codes), (codes, [err[-2000:] for _, err in ends])
        return [out for out, _ in ends]

    def progress(self, rank=0):
        """Return (steps, the time of the last one, phase, the script's own number of the step)."""
        steps, at, phase, number = self.watch._workers[rank].read()
        return steps, at, PHASES[phase], number

    def evidence(self):
        """Return the evidence of the first worker, as the fork server collects it."""
        pids = {0: self.processes[0].pid}
        for pause in self._evidence.ask(pids):
            time.sleep(pause)
        (found,) = self._evidence.found(pids)
        return found

    def end(self):
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate(timeout=LIMIT)
        self.watch.end()


def python(directory, text):
    path = directory / "train.py"
    path.write_text(text)
    return [sys.executable, str(path)]
