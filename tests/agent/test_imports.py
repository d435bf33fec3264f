"""Agents import nothing later than at their start: a file system may have stalled by then."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import hpclaunch

PACKAGE = Path(hpclaunch.__file__).parent
# Imported during the start, if needed at all.
NEEDED_AT_ONCE = {
    "agent.spread_staging",
    "agent.staging",
    "core.placement.mps_shares",
    "observe.live_line",
    "observe.text_style",
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


@pytest.mark.starts
@pytest.mark.parametrize("folder", ["agent", "core", "observe"])
def test_every_module_that_functions_import_is_there_from_the_start(folder):
    files = [f for f in (PACKAGE / folder).rglob("*.py") if not f.name.endswith("_service.py")]
    later = {module for file in files for module in imported_in_functions(file)}
    program = "import sys, hpclaunch.agent.assembly; print(*sys.modules)"
    output = subprocess.check_output([sys.executable, "-c", program], text=True)
    loaded = {name.removeprefix("hpclaunch.") for name in output.split()}
    assert later - NEEDED_AT_ONCE <= loaded
