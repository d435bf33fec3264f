"""Run the command as a user does, and look at what it leaves."""

import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import psutil

import timed
from surroundings import environment

CROWD = Path(__file__).parents[1] / "stand_ins" / "crowd.py"
HPCLAUNCH = Path(sys.executable).parent / "hpclaunch"
LIMIT = 240  # seconds; far more than any of these runs takes
started = []  # the launches of this test that `start` has begun, each with its directory


def hpclaunch(*args, cwd, env=None, before=(), timing=None, limit=LIMIT, **more):
    """Return the finished run, with its output as text. `before` has words before the command, and
    `timing` has time-outs other than the usual. It may take `limit` seconds."""
    command, env = _launch(args, env, before, timing)
    try:
        done = subprocess.run(
            command, cwd=cwd, env=env, timeout=limit, capture_output=True, text=True, **more
        )
    except subprocess.TimeoutExpired as e:
        err = (e.stderr or b"").decode(errors="replace")
        raise AssertionError(f"it runs for more than {limit} s, in {cwd}, and said: {err}") from e
    done.stderr = without_load(done.stderr)
    return done


def without_load(said):
    """Return the output without the warning that this machine is busy: other tests may load it."""
    return re.sub(r"(?m)^hpclaunch: on \S+: load: .* before the training has begun.*\n", "", said)


def start(*args, cwd, environ=None, before=(), timing=None, **more):
    """Start a launch, and return its process."""
    command, environ = _launch(args, environ, before, timing)
    more = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more}
    process = subprocess.Popen(command, cwd=cwd, env=environ, text=True, **more)
    started.append((process, cwd))
    return process


def _launch(args, environ, before, timing):
    environ = environment() if environ is None else environ
    program = [HPCLAUNCH]
    if timing:
        program = [sys.executable, timed.PROGRAM]
        environ = environ | timed.variables(environ["PATH"], **timing)
    return [*before, *program, *map(str, args)], environ


def said(process, text):
    """Return the first line on standard error with this text, once it is there; "" at the end."""
    return next((line for line in process.stderr if text in line), "")


def script(directory, text, name="train.py"):
    path = directory / name
    path.write_text(text)
    return path


def only_logs(cwd):
    (directory,) = (cwd / "hpclaunch-logs").iterdir()
    return directory


def outputs(cwd, number=0):
    """Return what the workers of a round have written to standard output so far, by file."""
    return {p.name: p.read_text() for p in (only_logs(cwd) / f"round-{number}").glob("*.out")}


def outputs_if_any(cwd, number=0):
    return outputs(cwd, number) if any(cwd.glob("hpclaunch-logs/*")) else {}


@contextmanager
def crowd(port, number):
    """While strangers hold so many connections to a port, all from its first moment on."""
    command = [sys.executable, CROWD, "127.0.0.1", str(port), str(number)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def until(condition, pause=0.02):
    """Return what `condition` returns once it is true. Where it starts programs, a longer pause
    between two of them leaves the CPUs to what is waited for."""
    deadline = time.monotonic() + LIMIT
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {LIMIT} s, but {found!r}; {_launches()}"
        time.sleep(pause)
    return found


def _launches():
    """Return the states of the launches of this test, and their directories, as text."""
    states = [("runs" if p.poll() is None else f"ended with {p.returncode}") for p, _ in started]
    return "; ".join(f"a launch in {d} {s}" for s, (_, d) in zip(states, started, strict=True))


def family(process):
    """Return the pids of a launcher and everything below it."""
    return [process.pid, *(p.pid for p in psutil.Process(process.pid).children(recursive=True))]


def command_of(pid):
    """Return the words of a process; none if it has just ended."""
    try:
        return psutil.Process(pid).cmdline()
    except psutil.Error:
        return []


def fork_server(process):
    """Return the pid of the launcher's fork server, and those of all processes below it."""
    children = psutil.Process(process.pid).children()
    (server,) = [p for p in children if "worker.fork_server" in " ".join(command_of(p.pid))]
    return [server.pid, *(p.pid for p in server.children(recursive=True))]


def end(process, signum=signal.SIGTERM):
    process.send_signal(signum)
    out, err = process.communicate(timeout=LIMIT)
    return process.returncode, out, err
