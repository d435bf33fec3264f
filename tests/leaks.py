"""Search for leaks of launches and restarts: `make test-leaks`.

A thousand launches, and a thousand restarts of one job, run in their own Linux namespaces. After
every four launches no process, file, shared memory or System V object may be left. During the
restarts, the agent and each of its helpers are sampled now and then, while the workers of a round
wait. The slope of the samples in the second half shows by how much each figure grows per restart.
By then the ledger is full: it keeps 400 entries.

A leak of one descriptor, watch or thread in ten restarts is found, and one of 500 bytes of memory
per restart; a smaller leak partly fits into memory that Python has already allocated. Without
leaks, a process grows by up to 120 bytes per restart: Python caches up to 4096 names of attributes.
The log directory grows with every round, by design.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

HPCLAUNCH = Path(sys.executable).parent / "hpclaunch"
SPACES = "--user --map-root-user --mount --ipc --net --pid --fork --kill-child --mount-proc"
AT_ONCE = 4  # launches
SAMPLES = 100  # of a job
LIMITS = {"memory": 256.0, "descriptors": 0.05, "watches": 0.05, "threads": 0.05}  # per restart
SETTLED = 0.2  # seconds from the start of a round's workers until the agent is idle
WATCHES = ("inotify ", "tfd:")  # lines in /proc/PID/fdinfo, of inotify and of epoll
LIMIT = 60  # seconds for a launch, and for the restarts between two samples
WORKER = """
import os, sys, time
number, rank = (int(os.environ[name]) for name in ("TORCHELASTIC_RESTART_COUNT", "RANK"))
mark = f"sample-{number}"
if rank == 0 and number % EVERY == 0:
    open(mark, "w").close()
    while os.path.exists(mark):
        time.sleep(0.01)
if number == RESTARTS:
    sys.exit()
if rank == 0:
    sys.exit(f"failure {number}")
time.sleep(3600)
"""

Figures = dict[tuple[int, str], dict[str, int]]  # by pid and name of the process


def processes() -> dict[int, str]:
    """Return {pid: name} of the processes of this namespace, except this one."""
    found = {}
    for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))):
        with contextlib.suppress(OSError):  # it may have just ended
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
            names = [word for word in words if word.startswith("hpclaunch.")]
            what = "hpclaunch" if str(HPCLAUNCH) in words else " ".join(words)[:80]
            found[pid] = names[0] if names else what
    found.pop(os.getpid())
    return found


def left(directories: list[Path]) -> list[str]:
    """Return everything that is left of ended launches after some time."""
    until = time.monotonic() + LIMIT
    while True:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:  # this process is the first of the namespace
                pass
        found = [f"process {pid}: {what}" for pid, what in processes().items()]
        for directory in (*directories, Path("/dev/shm")):
            found += map(str, directory.rglob("*"))
        for kind in ("shm", "sem", "msg"):
            found += Path(f"/proc/sysvipc/{kind}").read_text().splitlines()[1:]
        if not found or time.monotonic() > until:
            return found
        time.sleep(0.01)


def sample() -> Figures:
    figures: Figures = {}
    for pid, what in processes().items():
        where = Path("/proc", str(pid))
        try:
            lines = (where / "status").read_text().splitlines()
            status = dict(line.split(":", 1) for line in lines)
            files = [file.read_text() for file in (where / "fdinfo").iterdir()]
            memory = 1024 * int(status["RssAnon"].split()[0])
        except (OSError, KeyError):
            continue  # it has just ended
        watches = [line for line in "\n".join(files).splitlines() if line.startswith(WATCHES)]
        figures[pid, what] = {
            "memory": memory,
            "descriptors": len(files),
            "watches": len(watches),
            "threads": int(status["Threads"]),
        }
    return figures


def slope(points: list[tuple[int, int]]) -> float:
    """Return how much a figure grows per restart, from (restart, figure).

    This is the median of the slopes between any two points (Theil and Sen). The largest rise from
    one point to the next is left out, since a hash table that doubles once is no leak.
    """
    rises = [y - x for (_, x), (_, y) in itertools.pairwise(points)]
    at = rises.index(max(rises)) + 1
    level = [(n, y - max(rises) * (i >= at)) for i, (n, y) in enumerate(points)]
    pairs = itertools.combinations(level, 2)
    return statistics.median((y - x) / (m - n) for (n, x), (m, y) in pairs)


def launches(number: int, place: Path, directories: list[Path]) -> list[str]:
    """Run launches that succeed and launches that fail; return everything that is left."""
    script = place / "ends.py"
    script.write_text("import sys; sys.exit(int(sys.argv[1]))")
    kept: list[Path] = []  # files in the home directory: the secret, and caches of imports
    for done in range(0, number, AT_ONCE):
        began = []
        for code in range(AT_ONCE):
            command = [HPCLAUNCH, "--nproc", "2", "--max-restarts", "0", script, str(code % 2)]
            began.append(subprocess.Popen(command, cwd=place, stderr=subprocess.PIPE))
        for code, launch in enumerate(began):
            errors = launch.communicate(timeout=LIMIT)[1].decode()
            assert launch.returncode == code % 2, errors
        found = left(directories)
        files = [*Path.home().rglob("*")]
        kept = kept or files
        found += [f"{file} in the home directory" for file in {*files} - {*kept}]
        if found:
            return [f"after {done + AT_ONCE} launches: {each}" for each in found]
        shutil.rmtree(place / "hpclaunch-logs")
    return []


def samples(restarts: int, place: Path) -> Iterator[tuple[int, Figures]]:
    """Run a job with so many restarts; yield the figures after some of them."""
    every = max(1, restarts // SAMPLES)
    (place / "fails.py").write_text(f"RESTARTS, EVERY = {restarts}, {every}\n{WORKER}")
    options = ["--nproc", "2", "--max-restarts", str(restarts)]
    command = [HPCLAUNCH, *options, "fails.py"]
    with (
        open(place / "output", "w") as output,
        subprocess.Popen(command, cwd=place, stdout=output, stderr=output) as job,
        contextlib.ExitStack() as stack,
    ):
        stack.callback(job.kill)
        for number in range(0, restarts + 1, every):
            mark = place / f"sample-{number}"
            until = time.monotonic() + LIMIT
            while not mark.exists():
                assert job.poll() is None, (place / "output").read_text()[-2000:]
                assert time.monotonic() < until, f"no round {number} after {LIMIT} s"
                time.sleep(0.01)
            time.sleep(SETTLED)
            yield number, sample()
            mark.unlink()
        assert job.wait(LIMIT) == 0, (place / "output").read_text()[-2000:]


def growth(found: list[tuple[int, Figures]]) -> list[str]:
    """Print how each figure of the permanent processes grows; return those that grow too much."""
    found = found[len(found) // 2 :]
    lasting = set.intersection(*({*figures} for _, figures in found))
    excess = []
    for process in sorted(lasting):
        for name, most in LIMITS.items():
            points = [(number, figures[process][name]) for number, figures in found]
            per_restart = slope(points)
            line = (
                f"{process[1]}: {name}: {per_restart:+.3f} per restart "
                f"({points[0][1]:,} after {points[0][0]}, {points[-1][1]:,} after {points[-1][0]})"
            )
            print(line, flush=True)
            excess += [line] if per_restart > most else []
    modules = {what for _, what in lasting}
    missing = {"hpclaunch.worker.fork_server", "hpclaunch.system.logs.log_service"} - modules
    return excess + [f"{what} was replaced" for what in missing]


def inside(options: argparse.Namespace) -> list[str]:
    """Look for leaks in the namespaces of this process."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "none", "/dev/shm"], check=True)
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        names = {"TMPDIR": "temporary", "XDG_RUNTIME_DIR": "runtime", "HOME": "home"}
        for variable, name in names.items():
            (place / name).mkdir()
            os.environ[variable] = str(place / name)
        directories = [place / "temporary", place / "runtime"]
        found = launches(options.launches, place, directories)
        print(f"{options.launches} launches: {len(found)} leftovers", flush=True)
        found += growth(list(samples(options.restarts, place)))
        return found + left(directories)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--launches", type=int, default=1000)
    parser.add_argument(
        "--restarts", type=int, default=1000, help="with fewer than 900, the ledger still grows"
    )
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.inside:
        return subprocess.call(["unshare", *SPACES.split(), sys.executable, *sys.argv, "--inside"])
    found = inside(options)
    print("\n".join(["LEAKS:", *found]) if found else "no leaks")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
