"""A worker whose libraries were imported in advance is like one that has imported them itself."""

import json
import shutil
from pathlib import Path

import pytest
from launching import hpclaunch

from surroundings import environment

pytestmark = [pytest.mark.starts, pytest.mark.torch, pytest.mark.timeout(1000)]

SCRIPT = Path(__file__).with_name("libraries.py")


@pytest.fixture(scope="module")
def launched(frameworks, tmp_path_factory):
    """Return {how: the reports of two workers}, and the imports that were passed over.

    The second round of the warm launch is forked from a template that has imported the same as the
    first.
    """
    directory = tmp_path_factory.mktemp("libraries")
    shutil.copy(SCRIPT, directory / "train.py")
    more = {"MPLCONFIGDIR": directory / "mpl", "WANDB_MODE": "offline"}
    found = {}
    for how, options in (("cold", ["--cold"]), ("warm", [])):
        logs = directory / how
        words = ("--nproc=2", "--max-restarts=1", "--log-dir", logs, *options, "train.py")
        until = {"UNTIL": logs / "journal.jsonl"} if how == "warm" else {}
        done = hpclaunch(*words, cwd=directory, env=environment(**more, **until), limit=400)
        assert done.returncode == 0, done.stderr
        for number, file in enumerate(sorted(logs.glob("round-*"))):
            # DeepSpeed writes lines of its own before.
            outs = [(file / f"rank-{r}.out").read_text() for r in range(2)]
            found[how, number] = [json.loads(out.splitlines()[-1]) for out in outs]
    entries = map(json.loads, (logs / "journal.jsonl").read_text().splitlines())
    return found, [e["with"] for e in entries if e.get("note") == "passed-over"]


@pytest.mark.parametrize("number", [0, 1])
def test_a_worker_is_as_a_cold_one(launched, number):
    found, _ = launched
    for cold, warm in zip(found["cold", 0], found["warm", number], strict=True):
        assert {fact: warm[fact] for fact in warm if warm[fact] != cold[fact]} == {}
        assert warm.keys() == cold.keys()


def test_most_of_it_is_imported_in_advance(launched):
    """A module that is not imported in advance is named in the journal, with the reason."""
    _, passed = launched
    left = {entry["module"].partition(".")[0] for entry in passed}
    assert not left & {"*", "scipy", "pandas", "sklearn", "datasets"}, passed
