"""Makers for the whole test run: one process for each library."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from makers import Maker

from hpclaunch.system.shared import helper

TORCH = "torch_save"
# They need torch and little else, and share a process.
OF_TORCH = (TORCH, "dcp", "megatron_legacy", "safetensors_files", "sealed_directory")


@pytest.fixture(scope="session")
def maker(starts: None) -> Iterator[Callable[[str], Maker]]:
    made: dict[str, Maker] = {}

    def make(name: str) -> Maker:
        library = TORCH if name in OF_TORCH else name
        if library not in made:
            made[library] = Maker(library)
            helper._own.add(made[library]._process.pid)  # no orphan of a helper that is killed
        return made[library].beside(name)

    yield make
    for each in made.values():
        each.close()
