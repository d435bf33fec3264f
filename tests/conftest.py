"""What holds for every test: the surroundings are known, and nothing is timed."""

import os
import resource
import shlex
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import surroundings
from process_starts import StartWatch, is_marked

settings.register_profile(
    "hpclaunch",
    deadline=None,  # a noisy machine is no failure
    derandomize=True,  # new examples are for `make fuzz`
    # Nor does an example change a fixture for the next one.
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    print_blob=True,
)
settings.register_profile(
    "fuzz", settings.get_profile("hpclaunch"), derandomize=False, max_examples=1000
)
settings.load_profile("hpclaunch")

SLURM = Path(__file__).parent / "slurm"
SIGNALS = tuple(signal.valid_signals())
SPREAD = 0.85  # of the files of a run: the part among which those of tests/slurm are spread

# Names that a process may give itself, of up to 15 bytes, as it likes.
NAMES = (
    b"mod\xc3",  # cut in the middle of a character
    b") R 1 (x",  # as the end of the name in /proc/PID/stat, and what follows it
    b"a\nSigCgt:\tfffff",  # as a line of /proc/PID/status
    b"\x1b[31mred\x07\r\n",  # for a terminal
)

BUILD = (  # a part of DeepSpeed
    "from deepspeed.accelerator import get_accelerator;"
    "get_accelerator().create_op_builder('ShareMemCommBuilder').load()"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    known = surroundings.SURROUNDINGS
    what = "; ".join(f"{name}: {description}" for name, description in known.items())
    parser.addoption("--surroundings", default="", metavar="NAME,...", help=what)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    try:
        surroundings.make_known()
    except RuntimeError as e:
        raise pytest.UsageError(str(e)) from e
    known = surroundings.SURROUNDINGS
    for name in filter(None, config.getoption("--surroundings").split(",")):
        if name not in known:
            raise pytest.UsageError(f"--surroundings {name}: there are {', '.join(known)}")
        surroundings.enter(name)
    config.pluginmanager.register(StartWatch())


@pytest.hookimpl(trylast=True)  # once all have their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the files so that all test processes are busy to the end: files with processes before
    files that only compute, of these the simulations before the many short files of the core, and
    the files of tests/slurm, which mostly wait, spread evenly among all others but the last."""
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    jobs = [path for path in files if SLURM in path.parents]
    starts = [path for path, tests in files.items() if any(map(is_marked, tests))]
    computing = [path for path in reversed(files) if path not in {*starts}]
    others = [path for path in (*starts, *computing) if path not in {*jobs}]
    place = {path: n / len(others) for n, path in enumerate(others)}
    place |= {path: SPREAD * n / len(jobs) for n, path in enumerate(jobs)}
    items.sort(key=lambda item: place[item.path])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add to each failure how to run its test alone. A test without the mark `frameworks` fails
    where it would be skipped for a missing library."""
    report = yield
    if report.skipped and not item.get_closest_marker("frameworks") and (name := _missing(call)):
        report.outcome = "failed"
        report.longrepr = f"{name} is missing; mark this test with @pytest.mark.frameworks"
    if report.failed:
        pytest_here = os.path.relpath(Path(sys.executable).parent / "pytest", item.config.rootpath)
        given = item.config.getoption("--surroundings")
        options = ["--surroundings", given] if given else []
        command = shlex.join([pytest_here, *options, item.nodeid])
        report.sections.append(("run it alone", command))
    return report


def _missing(call: pytest.CallInfo[None]) -> str:
    """Return the module that importorskip has not found; "" if it is torch, or for another skip."""
    skips = pytest.importorskip.__code__
    frames = [entry.frame for entry in call.excinfo.traceback] if call.excinfo else []
    names = [frame.f_locals["modname"] for frame in frames if frame.code.raw is skips]
    return next((name for name in names if name.partition(".")[0] != "torch"), "")


@pytest.fixture(scope="session", autouse=True)
def _surroundings() -> None:
    """Where tests run, and not where pytest-xdist starts the processes that run them."""
    surroundings.tell()


@pytest.fixture(autouse=True)
def _nothing_is_left_in_this_process() -> Iterator[None]:
    """What a launch within this process has raised, or torch has set, no later test is to find."""
    limit, environ = resource.getrlimit(resource.RLIMIT_NOFILE), _environ()
    handlers = {each: signal.getsignal(each) for each in SIGNALS}
    yield
    for signum, handler in handlers.items():
        if handler is not None and signal.getsignal(signum) is not handler:
            signal.signal(signum, handler)
    if resource.getrlimit(resource.RLIMIT_NOFILE) != limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    if (now := _environ()) != environ:
        for name in now.keys() - environ.keys():
            del os.environ[name]
        os.environ.update(environ)


def _environ() -> dict[str, str]:
    """Without what pytest itself changes as it goes."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}


@pytest.fixture(scope="session")
def starts() -> None:
    """A fixture that starts processes requests this one, which marks the tests that use it."""


@pytest.fixture(scope="session")
def frameworks() -> None:
    """The same as `starts`, for fixtures that need the libraries of `pip install .[frameworks]`."""
    pytest.importorskip("wandb")  # the last of them


@pytest.fixture(scope="session")
def extensions(starts: None, frameworks: None) -> dict[str, str]:
    """The variables for DeepSpeed. It compiles its part for CPUs on first use: once for this
    Python, not in every job."""
    directory = Path(sys.prefix) / "torch_extensions"
    for lock in directory.glob("*/lock"):  # of a build that was killed: it would wait for ever
        lock.unlink()
    names = {"TORCH_EXTENSIONS_DIR": str(directory), "DS_ACCELERATOR": "cpu"}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # where its ninja is
    done = subprocess.run(
        [sys.executable, "-c", BUILD],
        env={**os.environ, **names, "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    return names


@pytest.fixture(scope="module")
def strangers(starts: None) -> Iterator[dict[bytes, int]]:
    """The pids of running processes, by their names; of another user's where we are root."""
    running = {name: surroundings.start_stranger(name) for name in NAMES}
    yield {name: process.pid for name, process in running.items()}
    for process in running.values():
        process.kill()
        process.wait()
