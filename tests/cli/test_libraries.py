"""A worker whose libraries were imported in advance is like one that has imported them itself."""

import json
import shutil
from pathlib import Path

import pytest
from launching import hpclaunch

from surroundings import environment

pytestmark = [pytest.mark.starts, pytest.mark.torch, pytest.mark.timeout(480)]

SCRIPT = Path(__file__).with_name("libraries.py")


@pytest.fixture(scope="module")
def launched(frameworks, tmp_path_factory):
    """{how: (what each of two workers has told, what was passed over, the lesson)}"""
    directory = tmp_path_factory.mktemp("libraries")
    shutil.copy(SCRIPT, directory / "train.py")
    cache = directory / "cache"
    more = {"XDG_CACHE_HOME": cache, "MPLCONFIGDIR": directory / "mpl", "WANDB_MODE": "offline"}
    found = {}
    for how, options in (("cold", ["--cold"]), ("first", []), ("second", [])):
        logs = directory / how
        words = ("--nproc=2", "--max-restarts=0", "--log-dir", logs, *options, "train.py")
        until = {"UNTIL": logs / "journal.jsonl"} if how == "first" else {}
        done = hpclaunch(*words, cwd=directory, env=environment(**more, **until))
        assert done.returncode == 0, done.stderr
        # DeepSpeed writes lines of its own before.
        outs = [(logs / "round-0" / f"rank-{r}.out").read_text() for r in range(2)]
        told = [json.loads(out.splitlines()[-1]) for out in outs]
        entries = map(json.loads, (logs / "journal.jsonl").read_text().splitlines())
        passed = [e["with"] for e in entries if e.get("note") == "passed-over"]
        kept = next(cache.rglob("*.json"), None)
        found[how] = (told, passed, None if kept is None else json.loads(kept.read_text()))
    return found


@pytest.mark.parametrize("how", ["first", "second"])
def test_a_worker_is_as_a_cold_one(launched, how):
    for rank in range(2):
        cold, warm = (launched[each][0][rank] for each in ("cold", how))
        assert {fact: warm[fact] for fact in warm if warm[fact] != cold[fact]} == {}
        assert warm.keys() == cold.keys()


def test_most_of_it_is_imported_in_advance(launched):
    """What is not is named in the journal, with the reason."""
    _, passed, lesson = launched["second"]
    assert lesson is not None
    known = {name for kind, name, _ in lesson["steps"] if kind == "import"}
    known -= {name for name in known if set(lesson["avoided"]) & {name, name.partition(".")[0]}}
    assert {"scipy.optimize", "pandas", "sklearn.linear_model", "datasets"} <= known, passed
