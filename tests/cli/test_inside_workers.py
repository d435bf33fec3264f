"""docs/inside-workers.md has all that a worker has because of hpclaunch, and nothing else.

The same script trains under torchrun and under hpclaunch, cold and warm, and looks at itself three
times (conformance/inside.py).
"""

import resource
import subprocess
import sys
from importlib.util import find_spec

import pytest
from conformance.launchers import FILES, Launchers
from conformance.page import TEXT, table, variables

import torch_version
from hpclaunch.core.placement.worker_environment import OWN
from hpclaunch.system.processes.fork_server_client import SITE
from hpclaunch.worker.site._hpclaunch_layout import HIGH
from surroundings import environment

FIRST, TORCH, TRAINING, WARM = map(
    table, ["From the first line", "Once torch is imported", "Once it trains", "Warm workers"]
)
SEEN_ELSEWHERE = ("environ.", "leads ", "prctl.")  # by conformance/probe.py
# With several workers there are no threads of OpenBLAS; the script does not import numpy.
SOMETIMES = {"status.Threads", "numpy.random.seed"}


@pytest.fixture(scope="module")
def runs(torchruns, tmp_path_factory):
    """Return the facts that a rank saw under each launcher."""
    directory = tmp_path_factory.mktemp("inside")
    (directory / "train.py").write_text((FILES / "inside.py").read_text())

    def launchers(name, start="cold"):
        return Launchers(directory, directory / f"{name}-{start}", start=start)

    runs = {
        "torchrun": launchers("torchrun").torchrun(torchruns, "train.py", workers=2),
        "cold": launchers("hpclaunch").hpclaunch("train.py", workers=2),
        "warm": launchers("hpclaunch", "warm").hpclaunch("train.py", workers=2),
    }
    for done in runs.values():
        assert len(done.facts) == 2, done.err
    return {name: done.facts[0] for name, done in runs.items()}


def differences(runs, start, moment):
    """Return the names of the facts that differ from those under torchrun, as the page has them.

    What a template imports for the script is there early: until the script has imported it, too,
    only what is hpclaunch's own counts.
    """
    theirs, ours = runs["torchrun"][moment], runs[start][moment]
    is_early = start == "warm" and moment != "training"
    found = set()
    for kind in ("facts", "functions"):
        for name in theirs[kind].keys() | ours[kind].keys():
            value = ours[kind].get(name)
            if value == theirs[kind].get(name):
                continue
            is_module = kind == "functions" or name.startswith("module.")
            if not (is_early and is_module) or "_hpclaunch" in f"{name} {value}":
                found.add(name.removesuffix(" (deleted)"))
    return found


def here(names):
    """Return the names with the descriptors that the limit of open files allows here."""
    highest = max(n for n in HIGH if n < resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    numbers = {"fd.900": f"fd.{highest}", "fd.901": f"fd.{highest + 1}"}
    return {numbers.get(name, name) for name in names if not name.startswith(SEEN_ELSEWHERE)}


# Once torch is imported, the finder waits only for these libraries, where they are installed.
LIBRARIES = [name for name in ("deepspeed", "transformers") if find_spec(name) is not None]
GONE = set() if LIBRARIES else {"meta_path._hpclaunch_hooks.Finder"}


of_current_torch = pytest.mark.skipif(
    torch_version.TORCH < (2, 8),
    reason="under torchrun, the store of this torch has other descriptors",
)


@pytest.mark.torch
@of_current_torch
@pytest.mark.parametrize(
    ("moment", "expected"),
    [
        ("first", FIRST),
        ("torch", (FIRST | TORCH) - GONE),
        ("training", (FIRST | TORCH | TRAINING) - GONE),
    ],
)
def test_a_cold_worker_has_what_the_page_names(runs, moment, expected):
    assert sorted(differences(runs, "cold", moment)) == sorted(here(expected))


@pytest.mark.torch
@of_current_torch
def test_a_warm_worker_has_what_the_page_names(runs):
    first, torch, training = (
        differences(runs, "warm", moment) for moment in ("first", "torch", "training")
    )
    everywhere = FIRST | TORCH | TRAINING | WARM
    assert sorted((first | torch | training) - here(everywhere)) == []
    assert sorted(here(WARM) - SOMETIMES - (first | torch | training)) == []
    # What is needed for a start only is gone. torch has set variables, whoever launches it.
    expected = here((FIRST | TORCH | TRAINING) - GONE) | {"gc.frozen"}
    assert sorted(training) == sorted(expected)


def test_the_page_names_every_variable():
    """Variables of Slurm and of torchrun are on other pages."""
    ours = {name for name in OWN if name.startswith("HPCLAUNCH_")}
    assert sorted(ours - variables()) == []


@pytest.mark.starts
def test_the_page_names_every_module_whose_functions_are_wrapped():
    program = f"import sys; sys.path.append({SITE!r}); import _hpclaunch_hooks as hooks"
    command = [sys.executable, "-c", f"{program}; print(*hooks.PATCHES)"]
    modules = subprocess.check_output(command, env=environment(), text=True)
    assert [name for name in modules.split() if f"`{name}" not in TEXT] == []
