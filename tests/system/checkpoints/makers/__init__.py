"""The tests' end of `run.py`: real saves by the real libraries."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SMALL = {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}


class Maker:
    """A process with one library in it; see `run.py`."""

    def __init__(self, name: str, python: str = sys.executable) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [python, str(HERE / "run.py"), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # The libraries' own files are in UTF-8, and some read them by the locale.
            env={**os.environ, "PYTHONUTF8": "1", **SMALL},
        )
        assert self._reply() == {"ready": True}

    def beside(self, name: str) -> Maker:
        """Return the maker of this name in the same process."""
        other = copy.copy(self)
        other.name = name
        return other

    def _reply(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the maker {self.name} has ended"
        return json.loads(line)

    def _ask(self, **request: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        print(json.dumps({"maker": self.name, **request}), file=self._process.stdin, flush=True)
        return self._reply()

    def save(self, root: Path, *steps: int, world: int = 1, **options: Any) -> None:
        reply = self._ask(do="save", root=str(root), world=world, steps=steps, options=options)
        assert reply["ok"], f"{self.name} could not save"

    def load(self, path: str | Path, root: Path, *, world: int = 1, **options: Any) -> int:
        """Load a checkpoint; return the step that every rank read from it."""
        request = {"root": str(root), "world": world, "path": str(path), "options": options}
        reply = self._ask(do="load", **request)
        assert reply["ok"], f"{self.name} cannot load {path}"
        (step,) = set(reply["steps"])
        return step

    def kill(
        self,
        root: Path,
        after: float,
        victims: list[int],
        *,
        world: int,
        apart: float,
        **options: Any,
    ) -> dict[str, Any]:
        """Save until ranks are killed; `saved` in the result is the last step of each rank."""
        reply = self._ask(
            do="kill", root=str(root), world=world, after=after, victims=victims, apart=apart,
            options=options,
        )  # fmt: skip
        assert reply["ok"], f"{self.name} could not begin"
        return reply

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()
