"""Settings for all tests: known surroundings, no deadlines for examples, and the order of files."""

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
from hpclaunch.system.shared import helper
from process_starts import StartWatch, is_marked

settings.register_profile(
    "hpclaunch",
    deadline=None,  # a busy machine is no failure
    derandomize=True,  # new examples are for `make fuzz`
    # Examples do not change fixtures either.
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    print_blob=True,
)
settings.register_profile(
    "fuzz", settings.get_profile("hpclaunch"), derandomize=False, max_examples=1000
)
settings.register_profile("quick", settings.get_profile("hpclaunch"), max_examples=20)
settings.load_profile("hpclaunch")

SLURM = Path(__file__).parent / "slurm"
SIGNALS = tuple(signal.valid_signals())
SPREAD = 0.85  # the part of a run's files among which those of tests/slurm are spread

# Names of up to 15 bytes that a process may give itself.
NAMES = (
    b"mod\xc3",  # cut in the middle of a character
    b") R 1 (x",  # as the end of the name in /proc/PID/stat, and what follows it
    b"a\nSigCgt:\tfffff",  # as a line of /proc/PID/status
    b"\x1b[31mred\x07\r\n",  # for a terminal
)

BUILD = (  # compiles a part of DeepSpeed
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


@pytest.hookimpl(trylast=True)  # after all tests have their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the files so that all test processes are busy to the end.

    Files that start processes come before files that only compute, and among those the simulations
    before the many short files of the core. The files of tests/slurm, which mostly wait, are spread
    evenly among all others but the last.
    """
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
    """Add to each failure the command that runs the test alone.

    A test without the mark `frameworks` fails, instead of being skipped, if a library is missing.
    """
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
    """Return the module that importorskip did not find, or "" for torch and for other skips."""
    skips = pytest.importorskip.__code__
    frames = [entry.frame for entry in call.excinfo.traceback] if call.excinfo else []
    names = [frame.f_locals["modname"] for frame in frames if frame.code.raw is skips]
    return next((name for name in names if name.partition(".")[0] != "torch"), "")


@pytest.fixture(scope="session", autouse=True)
def _surroundings() -> None:
    """Export variables in the processes that run tests, but not in pytest-xdist's main process."""
    surroundings.export_variables()


@pytest.fixture(scope="session", autouse=True)
def _helpers_are_waited_for() -> None:
    """Wait for helpers that this process has killed. On a busy machine they may take longer to end
    than an agent waits, and Python warns of each that nobody has waited for.
    """
    helper.ABANDON_LIMIT = 60.0


@pytest.fixture(autouse=True)
def _nothing_is_left_in_this_process() -> Iterator[None]:
    """Restore limits, signal handlers and variables that a test has changed in this process."""
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
    """Return the environment without the variables that pytest itself changes."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}


@pytest.fixture(scope="session")
def starts() -> None:
    """Mark the tests with the mark `starts`; a fixture that starts processes requests this one."""


@pytest.fixture(scope="session")
def frameworks() -> None:
    """Mark the tests with the mark `frameworks`, for fixtures that need those libraries."""
    pytest.importorskip("wandb")  # the last one that is installed


@pytest.fixture(scope="session")
def extensions(starts: None, frameworks: None) -> dict[str, str]:
    """Return variables with which DeepSpeed uses an extension that is compiled once per Python."""
    directory = Path(sys.prefix) / "torch_extensions"
    for lock in directory.glob(
        "*/lock"
    ):  # left by a build that was killed: a new one would wait for ever
        lock.unlink()
    names = {"TORCH_EXTENSIONS_DIR": str(directory), "DS_ACCELERATOR": "cpu"}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # with ninja
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
    """Start processes with odd names, of another user if we are root; return {name: pid}."""
    running = {name: surroundings.start_stranger(name) for name in NAMES}
    yield {name: process.pid for name, process in running.items()}
    for process in running.values():
        process.kill()
        process.wait()
