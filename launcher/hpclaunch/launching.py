"""Launches from Python, for notebooks and tests: `hpclaunch.launch`.

The launcher is a process of its own, as on the command line, and ends when this process does
(PR_SET_PDEATHSIG). The kernel sends that signal when the thread that forked the launcher ends, so a
thread of its own forks it and waits for its end.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from .cli import launch_ledgers, run
from .cli import options as launch_options
from .cli.parser import LaunchParser
from .core.protocol.errors import UsageError
from .core.protocol.job_snapshot import LaunchSnapshot
from .core.protocol.model import Request
from .core.protocol.wording import signal_name
from .observe.job_report import JobReport, report
from .observe.job_screen import led_from
from .passed_function import write_script
from .system.logs import status_file
from .system.logs.log_directory import make_temporary
from .system.network import launches, view_client
from .system.shared.helper import ROOT

__all__ = ["JobResult", "LaunchedJob", "UsageError", "launch"]

# Imports hpclaunch from the directory of this package, which need not be installed.
PROGRAM = (
    "import sys; sys.path = [*filter(None, sys.path), sys.argv[1]]; "
    "from hpclaunch.cli.called import main; sys.exit(main(*sys.argv[2:]))"
)
MARGIN = 15.0  # seconds beyond --grace until a launcher that does not end is killed
AGAIN = 0.05  # seconds between two requests to a launcher that has not answered yet
PATIENCE = 30.0  # seconds for the launcher to answer
Option = str | int | float | os.PathLike[str] | Sequence[str] | None


@dataclass(frozen=True, slots=True)
class JobResult:
    """The result of a job."""

    code: int  # the exit code of the launcher; 0: all workers have ended with 0
    reason: str  # the launcher's reason for the end
    # What `hpclaunch report --json` prints; None if there is no ledger.
    report: JobReport | None = field(repr=False)


def launch(
    program: str | os.PathLike[str] | Callable[..., object],
    *args: Any,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    **options: Option,
) -> LaunchedJob:
    """Start workers, as `hpclaunch [options] program args` does. Return once the launcher is up.

    `program` is a script, or with `module=True` a module, or with `no_python=True` any program. If
    it is a function, every worker calls it with `args` and drops its result. `env` is added to the
    variables of this process. `options` are those of the command line: `max_restarts=1` is
    --max-restarts 1, and `cold=True` is --cold. True and False are "on" and "off" for options with
    these values, and a list stands for words separated by commas.

    Raises UsageError where the command would end with exit code 2; then nothing has started. The
    job ends at the end of a `with` block, or with this process.
    """
    given = env or {}
    environ = {**os.environ, **given}
    for name, value in given.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise UsageError(f"env: variables are strings, and not {name!r}: {value!r}")
    parser = launch_options.build_parser(environ)
    try:
        words = _words(parser, options)
    except UsageError as e:
        if not callable(program):
            raise
        raise UsageError(f"{e}; for arguments of the function, use functools.partial") from e
    directory = Path.cwd() if cwd is None else Path(cwd)
    if not directory.is_dir():
        raise UsageError(f"cwd {directory} is not a directory")
    own: Path | None = None
    try:
        if callable(program):
            own = _private_directory()
            command = [*words, "--", str(write_script(program, args, own))]
        else:
            command = [*words, "--", os.fspath(program), *map(_text, args)]
        chosen = parser.parse_args(command)
        run.check(chosen)
        return LaunchedJob(command, environ, directory, chosen, own)
    except BaseException:
        if own is not None:
            shutil.rmtree(own, ignore_errors=True)
        raise


def _private_directory() -> Path:
    """Make a temporary directory that no other user can replace, for a script that workers run.
    Raises UsageError.
    """
    try:
        return make_temporary("hpclaunch-")
    except OSError as e:
        why = ": ".join(str(word) for word in (e.filename, e.strerror) if word)
        raise UsageError(f"cannot launch a function: {why}: set TMPDIR") from e


def _words(parser: LaunchParser, options: Mapping[str, Option]) -> list[str]:
    """Return these options as words of the command line."""
    words = []
    for name, value in options.items():
        dashes = "-" if len(name) == 1 else "--"
        spelling = dashes + name.replace("_", "-")
        action = parser.option(spelling)
        if action.nargs == 0 and not isinstance(value, bool | None):  # a flag
            raise UsageError(f"{name} is True or False, not {value!r}")
        if action.nargs in (0, "?") and isinstance(value, bool | None):
            words += [spelling] if value else []
        elif value is not None:
            words += [spelling, _value(value)] if dashes == "-" else [f"{spelling}={_value(value)}"]
    return words


def _value(value: Option) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return str(value)


def _text(arg: Any) -> str:
    return os.fspath(arg) if isinstance(arg, os.PathLike) else str(arg)


class LaunchedJob:
    """A job that `launch` has started. All methods may be called from any thread.

    In a Slurm step with several tasks, it is this task's part of the job.
    """

    name: str  # for `hpclaunch status NAME` and the like
    logs: Path  # the log directory
    pid: int  # of the launcher

    def __init__(
        self,
        command: Sequence[str],
        environ: Mapping[str, str],
        directory: Path,
        chosen: argparse.Namespace,
        own: Path | None,
    ) -> None:
        """Start the launcher. Raises UsageError if it fails. `own`: a directory to remove later."""
        self._own = own
        self._caller = os.getpid()
        self._limit = chosen.shutdown_timeout + MARGIN
        self._code: int | None = None  # also None after the end, if the kernel has not kept it
        self._process: subprocess.Popen[bytes] | None = None
        self._trouble: Exception | None = None
        reading, writing = os.pipe()
        mine = [str(os.getpid()), str(writing), "" if own is None else str(own)]
        child = [sys.executable, "-c", PROGRAM, ROOT, *mine, *command]
        # Events, since an interrupted Thread.join may mark a live thread as ended.
        self._started, self._ended = threading.Event(), threading.Event()
        threading.Thread(
            target=self._run,
            args=(child, dict(environ), directory, writing),
            name="hpclaunch",
            daemon=True,  # the job ends when the interpreter exits, which must not wait for it
        ).start()
        try:
            self._started.wait()
            answer = self._hear(reading)
        except BaseException:
            self.close()
            raise
        finally:
            os.close(reading)
        self.name, self.logs = answer["name"], Path(answer["logs"])

    def _run(
        self, command: list[str], environ: dict[str, str], directory: Path, writing: int
    ) -> None:
        """Start the launcher, and wait for its end. This runs in the thread."""
        try:
            try:
                self._process = subprocess.Popen(
                    command,
                    env=environ,
                    cwd=directory,
                    stdin=subprocess.DEVNULL,
                    pass_fds=[writing],
                    start_new_session=True,  # Ctrl-C interrupts only this process
                )
            finally:
                os.close(writing)
            self.pid = self._process.pid
            self._started.set()
            # Popen.wait would return 0 if this program ignores SIGCHLD or reaps all its children.
            try:
                os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
            except ChildProcessError:
                self._process.wait()
            else:
                self._code = self._process.wait()
        except (OSError, ValueError) as e:  # ValueError: a word contains a null byte
            self._trouble = e
        finally:
            self._started.set()
            self._ended.set()

    def _hear(self, reading: int) -> dict[str, str]:
        """Return the line that the launcher sends once it is up. Raises UsageError."""
        if self._trouble is not None:
            raise UsageError(f"cannot start the launcher: {self._trouble}")
        with open(reading, "rb", closefd=False) as f:
            line = f.readline()
        answer: dict[str, str] = {}
        with contextlib.suppress(ValueError):  # it was killed before the end of the line
            answer = json.loads(line)
        if "name" in answer:
            return answer
        self._ended.wait()
        raise UsageError(answer.get("error") or f"the launcher {self._end} before the job began")

    def __enter__(self) -> LaunchedJob:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "running" if self.running else self._end
        return f"<hpclaunch job {self.name}, {state}>"

    @property
    def _end(self) -> str:
        """The end of the launcher in words."""
        if self._code is None:
            return "ended"
        if self._code < 0:
            return f"was killed by {signal_name(-self._code)}"
        return f"ended with code {self._code}"

    @property
    def running(self) -> bool:
        return not self._ended.is_set()

    def wait(self, timeout: float | None = None) -> JobResult:
        """Wait for the end of the job. Raises TimeoutError after `timeout` seconds."""
        if not self._ended.wait(timeout):
            raise TimeoutError(f"job {self.name} runs for more than {timeout:g} s")
        found: JobReport | None = None
        with contextlib.suppress(OSError):
            known = [each for each in launch_ledgers.read(self.logs)[0] if each.name == self.name]
            found = report(known[-1:]) if known else None
        code = self._code
        if code is None:
            code = 1 if found is None or found.code is None else found.code
        killed = "the launcher was killed" if code < 0 else ""
        code = code if code >= 0 else 128 - code  # a signal, as in a shell
        return JobResult(code, (found.reason if found else "") or killed, found)

    def snapshot(self) -> LaunchSnapshot:
        """Return the job as it is now or was at its end, as `hpclaunch status --json` prints it.
        Raises UsageError if the launcher does not answer.
        """
        limit = time.monotonic() + PATIENCE
        while not self._ended.wait(AGAIN):
            if (found := launches.of_process(self.pid)) is not None:
                return found
            if time.monotonic() >= limit:  # it may be stopped
                raise UsageError(f"job {self.name}: it does not answer")
        if (last := status_file.newest(str(self.logs))) is None:
            raise UsageError(f"job {self.name} has ended, and there is no snapshot in {self.logs}")
        return last

    def stop(self) -> None:
        """End the job in order, without waiting: its workers get SIGTERM, and --grace seconds."""
        if self._process is not None:
            self._process.terminate()

    def restart(self) -> None:
        """Start all workers again from the newest checkpoint. Raises UsageError if refused."""
        self._ask(Request.RESTART)

    def notice(self) -> None:
        """Give all workers notice before the same step. Raises UsageError if refused."""
        self._ask(Request.NOTICE)

    def close(self) -> None:
        """End the job if it still runs. Return once nothing of it is left.

        In a process that the caller has forked, do nothing: the job is the caller's.
        """
        if os.getpid() != self._caller:
            return
        try:
            self._started.wait()  # until then, there is no process to stop
            if self.running:
                self.stop()
                self._ended.wait(self._limit)
        finally:
            if self._process is not None and self.running:
                self._process.kill()  # the workers end with it
            self._ended.wait()
            if self._own is not None:  # the launcher removes it, unless it was killed
                shutil.rmtree(self._own, ignore_errors=True)

    def _ask(self, request: Request) -> None:
        answers = view_client.request(request.value, self.pid) if self.running else []
        if not answers and (member := launches.of_process(self.pid)) is not None:
            try:  # another agent leads
                answers = launches.find(self.name, os.environ).request(request)
            except launches.NoLaunchError as e:
                raise UsageError(f"job {self.name}: it {led_from(member)}: {e}") from e
        if not answers:
            why = "it does not answer" if self.running else "it has ended"
            raise UsageError(f"job {self.name}: {why}")
        if answers[0]:
            raise UsageError(f"job {self.name}: {answers[0]}")
