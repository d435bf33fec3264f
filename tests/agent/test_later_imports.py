"""A second after their start, agents import everything that they would import later."""

from __future__ import annotations

import ast
import subprocess
import sys
import time
from pathlib import Path

import pytest

import hpclaunch
from hpclaunch.agent.later_imports import AFTER, MODULES, LaterImports

PACKAGE = Path(hpclaunch.__file__).parent
# Imported during the start, if needed at all.
NEEDED_AT_ONCE = {
    "agent.spread_staging",
    "agent.staging",
    "core.placement.mps_shares",
    "core.protocol.job_snapshot",  # together with the modules that make a snapshot
    "observe.live_line",
    "observe.text_style",
    "observe.notifications",
    "system.gpus.gpu_watcher_client",
    "system.gpus.mps",
    "system.network.view_socket",
    "worker.mps_messages",
}


def imported_in_functions(file: Path):
    """Yield the modules that a file imports in functions, relative to this package."""
    package = file.relative_to(PACKAGE).parts[:-1]
    tree = ast.parse(file.read_text())
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    for node in (n for function in functions for n in ast.walk(function)):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = ".".join((*package[: len(package) - node.level + 1], node.module or ""))
            for alias in node.names:
                below = f"{base.strip('.')}.{alias.name}"
                is_module = (PACKAGE / f"{below.replace('.', '/')}.py").exists()
                yield below if is_module else base.strip(".")


@pytest.mark.parametrize("folder", ["agent", "core", "observe"])
def test_every_module_that_functions_import_is_listed(folder):
    files = [f for f in (PACKAGE / folder).rglob("*.py") if not f.name.endswith("_service.py")]
    later = {module for file in files for module in imported_in_functions(file)}
    assert later - NEEDED_AT_ONCE <= set(MODULES)


@pytest.mark.starts
def test_they_are_imported_once_after_a_second():
    program = (
        "import sys\n"
        "from hpclaunch.agent import later_imports\n"
        "later = later_imports.LaterImports()\n"
        "later.update(later.deadline() - 0.1)\n"
        "names = {f'hpclaunch.{module}' for module in later_imports.MODULES}\n"
        "assert not names & sys.modules.keys()\n"
        "later.update(later.deadline())\n"
        "assert names <= sys.modules.keys()\n"
        "assert later.deadline() == float('inf')\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    assert LaterImports().deadline() <= time.monotonic() + AFTER
