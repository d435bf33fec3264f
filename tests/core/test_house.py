"""The rooms of the house, and the direction of the imports:
cli -> agent -> {system, observe} -> core.
"""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import hpclaunch

PACKAGE = Path(hpclaunch.__file__).parent
FILES = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py"))

# Modules that only compute. signal is here for its names and numbers.
MEASUREMENT = "measurement.py"  # runs as the workers' script
PROGRESS = "_hpclaunch_progress.py"
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
    "msgspec",
    "re",
    "operator",
    "shlex",
    "signal",
    "stat",
    "string",
    "textwrap",
    "typing",
    "zlib",
}
# What each room may import of the package.
PARTS = (
    *("protocol", "consensus", "placement", "health", "hangs", "stragglers", "source", "staging"),
    *("ending", "head", "member", "control"),
)
CORE = {f"core.{part}" for part in PARTS}
NOUNS = {"core.protocol"}
RULES = {"core.consensus", "core.placement", "core.health", "core.hangs", "core.stragglers"}
# The agent's side and the worker's.
OF_BOTH = (
    *("worker.json_lines", "worker.messages", "worker.fork_server_messages"),
    *("worker.death_notices", "worker.memory_kills", "worker.mps_messages"),
    *("worker.private_files", "worker.processes", "worker.sock_diag"),
    "worker.site",  # the table of variables
)
ALLOWED = {
    "core.protocol": set(),
    "core.consensus": NOUNS,
    "core.placement": NOUNS,
    "core.health": NOUNS,
    "core.hangs": NOUNS,
    "core.stragglers": NOUNS,
    "core.ending": NOUNS,
    "core.source": NOUNS,
    "core.staging": NOUNS,
    "core.head": NOUNS | RULES | {"core.ending"},
    "core.member": NOUNS | RULES | {"core.ending"},
    "core.control": NOUNS
    | {
        "core.consensus",
        "core.stragglers",
        "core.ending",
        "core.head",
        "core.member",
    },
    "core": set(),
    "observe": NOUNS | {"core.hangs", "core.ending", "core.head", "core.member"},
    "system": CORE | {"system.shared", *OF_BOTH, "__init__"},
    "agent": CORE
    | {"observe", "system", "system.shared", "worker.json_lines", "__init__"}
    | {
        "worker.memory_kills",
        "worker.messages",
        "worker.fork_server_messages",
        "worker.mps_messages",
    },
    "cli": CORE | {"observe", "system", "system.shared", "agent", "__init__"},
    "worker": set(),
    "progress": set(),
    "notice": set(),
    "__main__": {"cli"},
    "shims": set(),
    "passed_function": NOUNS | {"worker.private_files"},
    "launching": CORE | {"observe", "system", "system.shared", "cli", "passed_function"},
    "__init__": NOUNS | {"launching"},
}
# One thing of the outside that takes several files: these may know each other.
TOGETHER = (
    *("system.checkpoints", "system.gpus", "system.logs", "system.network", "system.staging"),
    *("observe", "agent", "cli", "worker"),
)
# What is built on another thing of the outside.
BUILT_ON = {"system.staging": {"system.checkpoints", "system.network"}}


@dataclass
class Uses:
    """The names that one file uses of others."""

    imports: list[str] = field(default_factory=list)  # dotted paths; within functions, too
    at_run_time: list[str] = field(default_factory=list)  # those that not only type checkers see
    of_signal: set[str] = field(default_factory=set)  # attributes of the module signal
    searches: list[int] = field(default_factory=list)  # lines that search in a text of ours


@functools.cache
def uses(file: Path) -> Uses:
    found = Uses()
    package = ("hpclaunch", *file.parts[:-1])
    for statement in ast.parse((PACKAGE / file).read_text()).body:
        names: list[str] = []
        for node in ast.walk(statement):
            match node:
                case ast.Import():
                    names += [alias.name for alias in node.names]
                case ast.ImportFrom():
                    base = package[: len(package) - node.level + 1] if node.level else ()
                    module = ".".join((*base, *([node.module] if node.module else [])))
                    names += [f"{module}.{alias.name}" for alias in node.names]
                case ast.Attribute(value=ast.Name(id="signal"), attr=attr):
                    found.of_signal.add(attr)
                case ast.Compare() | ast.Call() if is_search(node):
                    found.searches.append(node.lineno)
        found.imports += names
        if not is_for_types(statement):
            found.at_run_time += names
    return found


def imports(file: Path) -> list[str]:
    return uses(file).imports


def imported(file: Path) -> set[str]:
    """Return the names of the packages and modules that a file imports."""
    return {name.split(".")[0] for name in imports(file)}


def is_for_types(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def room(dotted: str) -> str:
    """'core.head', 'agent', ... of a name in the package; '__init__' for what that has itself."""
    first, *rest = dotted.removeprefix("hpclaunch.").split(".")
    known = (PACKAGE / first).is_dir() or (PACKAGE / f"{first}.py").exists()
    if not known:
        return "__init__"
    two = ".".join([first, *rest[:1]])
    return two if first == "core" or two in ("system.shared", *OF_BOTH) else first


def folder(dotted: str) -> str:
    return next((f for f in (*TOGETHER, *sorted(CORE)) if f"{dotted}.".startswith(f"{f}.")), dotted)


def offenders(check, *folders):
    """Return what `check` finds in each file of the package, or of these folders, if anything."""
    files = [file for file in FILES if any(map(file.is_relative_to, folders or ["."]))]
    return {str(file): found for file in files if (found := check(file))}


def test_imports_go_one_way():
    def forbidden(file):
        dotted = ".".join(file.with_suffix("").parts)
        inner = [name for name in imports(file) if name.split(".")[0] == "hpclaunch"]
        own = {folder(dotted), *BUILT_ON.get(folder(dotted), ())}
        others = [n for n in inner if folder(n.removeprefix("hpclaunch.")) not in own]
        allowed = ALLOWED.get(room(dotted)) or ALLOWED[file.parts[0].removesuffix(".py")]
        also = CORE if file.name == MEASUREMENT else set()
        return {room(name) for name in others} - allowed - also

    assert offenders(forbidden) == {}


# Who leads could be agreed upon like this by the agents of any program.
OF_ANY_PROGRAM = {
    "configuration": {"NOBODY", "Configuration", "JobRecord", "Voters", "voters"},
    "effects": {"Dial", "Effect", "KeepWorkers", "Probe", "Record", "Send"},
    "facts": {"ElectionAwaited", "HeadHeard", "HeadSilent"},
    "losses": {"Loss"},
    "messages": {"Hint"},
    "model": {"Place"},
    "timing": {"Timing"},
    "values": {"replace"},
}
OF_TRAINING = re.compile(r"checkpoint|\bgpu|\brank|\btorch|restart|training|worker group", re.I)


def test_consensus_knows_nothing_of_training():
    def of_training(file):
        inner = [name for name in imports(file) if name.startswith("hpclaunch.core.protocol")]
        nouns = [name.split(".")[-2:] for name in inner]
        text = (PACKAGE / file).read_text().replace("does not depend on training", "")
        others = [name for room, name in nouns if name not in OF_ANY_PROGRAM[room]]
        return others + OF_TRAINING.findall(text)

    assert offenders(of_training, "core/consensus") == {}


def test_core_and_observers_are_pure():
    def foreign(file):
        return imported(file) - {"hpclaunch"} - PURE

    assert offenders(foreign, "core", "observe") == {}


def test_core_uses_of_signal_only_its_names():
    """Neither handlers nor kills: an enum of numbers."""

    def others(file):
        return {name for name in uses(file).of_signal if not name.startswith("SIG")} - {"Signals"}

    assert offenders(others, "core") == {}


def test_worker_files_stand_alone():
    """Python has nothing but its own library there, and in the user's, where the site's files
    are imported, of ours only what lies beside them."""

    def foreign(file):
        used = {name.split(".")[0] for name in uses(file).at_run_time}
        known = {"hpclaunch"}
        if file.name == MEASUREMENT:
            known = {"hpclaunch", "torch"}
        elif file.parent.name == "site":
            known = {f.stem for f in FILES if f.parent == file.parent} | {"torch"}
        return used - set(sys.stdlib_module_names) - known

    assert offenders(foreign, "worker") == {}


def test_only_the_template_loads_torch():
    """The fork server stays one light thread, and a worker imports torch when its script does; one
    that makes an optimizer has done so."""
    know = {str(file) for file in FILES if "torch" in imported(file)}
    site = {f"worker/site/{name}" for name in ("_hpclaunch_template.py", PROGRESS)}
    assert know == site | {f"worker/{MEASUREMENT}"}


@pytest.mark.starts
def test_an_agent_does_not_load_torch():
    """Loading torch would cost the agent over a second and hundreds of megabytes."""
    modules = "sys, hpclaunch.agent.assembly, hpclaunch.cli"
    program = f"import {modules}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


# Texts that we have made for people: in which no decision, figure or report may search.
OUR_TEXTS = {
    *("account", "advice", "lost", "message", "notice", "reason", "said", "straggler", "unfit"),
    *("verdict", "why", "why_lost", "words"),
}
SEARCHES = {
    *("count", "endswith", "find", "fullmatch", "index", "match", "partition", "removeprefix"),
    *("rfind", "rpartition", "search", "split", "splitlines", "startswith"),
}
# Texts of others, and formats in which our processes talk, that bear such a name.
OTHERS_TEXTS = {
    "cli/sbatch.py": "what sbatch says",
    "core/head/last_lines.py": "the table of what workers' last lines mean",
    "system/logs/error_file.py": "the message of a worker's exception",
    "system/network/launches.py": "the format in which steps answer",
}


def our_text(node: ast.AST) -> bool:
    """Return whether an expression bears the name of such a text."""
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return name.lstrip("_") in OUR_TEXTS


def is_search(node: ast.AST) -> bool:
    match node:
        case ast.Compare(left=left, ops=ops, comparators=[*right]):
            operands = [left, *right]
            for operator, one, other in zip(ops, operands, right, strict=False):
                constant = isinstance(one, ast.Constant | ast.JoinedStr)
                if isinstance(operator, ast.In | ast.NotIn) and constant and our_text(other):
                    return True
                equal = isinstance(operator, ast.Eq | ast.NotEq)
                if equal and our_text(one) and isinstance(other, ast.Constant) and other.value:
                    return True
        case ast.Call(func=ast.Attribute(attr=attr, value=value), args=args) if attr in SEARCHES:
            return our_text(value) or any(map(our_text, args))
    return False


def test_nothing_is_found_out_from_a_text_of_ours():
    found = offenders(lambda file: uses(file).searches)
    assert {file for file in found if not file.startswith("worker/")} == OTHERS_TEXTS.keys(), found


@pytest.mark.parametrize(
    "code",
    [
        '"Slurm requeues it" in verdict.reason',
        '" lost" not in lost',
        'f"{host} is" in why',
        'job.notice.startswith("given")',
        'job.straggler.rpartition(" ")[2]',
        're.search(r"\\blost\\b", reason)',
        'self._why == "it leads no more"',
    ],
)
def test_searches_are_found(code):
    assert any(map(is_search, ast.walk(ast.parse(code))))
