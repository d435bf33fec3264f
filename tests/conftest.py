"""What holds for every test: the surroundings are known, and nothing is timed."""

import pytest
from hypothesis import settings

import surroundings

settings.register_profile("hpclaunch", deadline=None)  # a noisy machine is no failure
settings.load_profile("hpclaunch")


def pytest_addoption(parser: pytest.Parser) -> None:
    known = surroundings.SURROUNDINGS
    what = "; ".join(f"{name}: {description}" for name, description in known.items())
    parser.addoption("--surroundings", choices=known, help=f"start everything in {what}")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    try:
        surroundings.make_known()
    except RuntimeError as e:
        raise pytest.UsageError(str(e)) from e
    if name := config.getoption("--surroundings"):
        surroundings.enter(name)


@pytest.fixture(scope="session", autouse=True)
def _surroundings() -> None:
    """Where tests run, and not where pytest-xdist starts the processes that run them."""
    surroundings.tell()
