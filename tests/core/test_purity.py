"""The direction of the imports: cli -> agent -> system -> core, and torch in the worker only."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import hpclaunch

PACKAGE = Path(hpclaunch.__file__).parent
FILES = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py"))

# Modules that only compute. signal is here for its names and numbers.
PREFLIGHT = "preflight.py"  # runs as the workers' script
HOROVOD = "_hpclaunch_horovod.py"
PURE = {
    "__future__",
    "ast",
    "bisect",
    "collections",
    "dataclasses",
    "enum",
    "functools",
    "itertools",
    "math",
    "re",
    "operator",
    "shlex",
    "signal",
    "string",
    "typing",
    "zlib",
}
# What several of the system's rooms share.
SHARED = tuple(f"hpclaunch.system.{name}" for name in ("descriptors", "disk", "helper", "packing"))
REQUESTS = "hpclaunch.worker.requests"  # how a process that serves the agent is asked
# What each room may import of the package; those of one file stand beside the agent.
ALLOWED = {
    "core": {"core"},
    "system": {"core", "helper"},  # one outside thing per file, but for what several share
    "worker": {"worker"},
    "report": {"core"},
    "config": {"core", "system"},
    "workers": {"core", "system", "config"},
    "channels": {"core", "system"},
    "joining": {"core", "system", "config", "channels"},
    "output": {"core", "system"},
    "health": {"core", "system", "config"},
    "sharing": {"core", "system", "config"},
    "resuming": {"core", "system", "config"},
    "agent": {
        *{"core", "system", "config"},
        *{"report", "workers", "joining", "output", "health", "resuming", "sharing"},
    },
    "cli": {
        *{"core", "system", "helper", "config"},
        *{"report", "workers", "agent", "cli", "__init__"},
    },
    "__main__": {"cli"},
    "shims": set(),
    "__init__": set(),
}


def imports(file: Path) -> list[str]:
    """Absolute names of everything a file imports, within functions too, as dotted paths."""
    package = ("hpclaunch", *file.parts[:-1])
    found = []
    for node in ast.walk(ast.parse((PACKAGE / file).read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*base, *([node.module] if node.module else [])))
            found += [f"{module}.{alias.name}" for alias in node.names]
    return found


def room(dotted: str) -> str:
    """'core', 'agent', ... of a name in the package; '__init__' for what the package itself has."""
    if dotted.startswith(SHARED):
        return "helper"
    name = dotted.split(".")[1]
    known = (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").exists()
    return name if known else "__init__"


@pytest.mark.parametrize("file", FILES, ids=str)
def test_imports_go_one_way(file):
    own = file.parts[0].removesuffix(".py")
    inner = [name for name in imports(file) if name.split(".")[0] == "hpclaunch"]
    if own == "system" and len(file.parts) > 2:  # a folder for one thing that takes several files
        own_folder = f"hpclaunch.system.{file.parts[1]}."
        inner = [name for name in inner if not name.startswith((own_folder, REQUESTS))]
    also = {"core"} if file.name == PREFLIGHT else set()
    assert {room(name) for name in inner} <= ALLOWED[own] | also


@pytest.mark.parametrize("file", [f for f in FILES if f.parts[0] == "core"], ids=str)
def test_core_is_pure(file):
    foreign = {name.split(".")[0] for name in imports(file)} - {"hpclaunch"}
    assert foreign <= PURE


@pytest.mark.parametrize("file", [f for f in FILES if f.parts[0] == "core"], ids=str)
def test_core_uses_of_signal_only_its_names(file):
    """Neither handlers nor kills: an enum of numbers."""
    used = {
        node.attr
        for node in ast.walk(ast.parse((PACKAGE / file).read_text()))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "signal"
    }
    assert {name for name in used if not name.startswith("SIG")} <= {"Signals"}


@pytest.mark.parametrize("file", [f for f in FILES if f.parts[0] == "worker"], ids=str)
def test_worker_files_stand_alone(file):
    """Python has nothing but its own library there, and in the user's, where the site's files
    are imported, of ours only what lies beside them."""
    foreign = {name.split(".")[0] for name in imports(file)} - set(sys.stdlib_module_names)
    if file.name == PREFLIGHT:
        assert foreign <= {"hpclaunch", "torch"}
    elif file.parent.name == "site":
        known = {"torch", "horovod"} if file.name == HOROVOD else {"torch"}
        assert foreign <= {f.stem for f in FILES if f.parent == file.parent} | known
    else:
        assert foreign <= {"hpclaunch"}


@pytest.mark.parametrize("file", [f for f in FILES if f.parts[0] == "worker"], ids=str)
def test_only_the_template_loads_torch(file):
    """The fork server stays one light thread, and a worker imports torch when its script does; one
    that uses Horovod has done so."""
    loads = "torch" in {name.split(".")[0] for name in imports(file)}
    assert not loads or file.name in ("_hpclaunch_template.py", HOROVOD, PREFLIGHT)


@pytest.mark.parametrize("file", [f for f in FILES if f.parts[0] != "worker"], ids=str)
def test_only_workers_know_torch(file):
    assert "torch" not in {name.split(".")[0] for name in imports(file)}


def test_an_agent_does_not_load_torch():
    """It would cost the agent over a second and hundreds of megabytes."""
    program = "import sys, hpclaunch.agent, hpclaunch.cli; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)
