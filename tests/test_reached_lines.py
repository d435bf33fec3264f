"""A line counts as reached in each process that imports it, however the process ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from reached_lines import marks, reached

# "# 1" at the end of each line that must count
MODULE = '''"""A docstring."""  # 1

from __future__ import annotations  # 1

import functools  # 1
import os  # 1
import signal  # 1


@functools.cache  # 1
def end(how: str) -> str:  # 1
    """Another one."""  # 1
    try:  # 1
        match how:  # 1
            case "in a fork":  # 1
                pid = os.fork()  # 1
                if pid:  # 1
                    os.waitpid(pid, 0)  # 1
                elif how:  # 1
                    os._exit(0)  # 1
            case "by a signal":  # 1
                os.kill(os.getpid(), signal.SIGKILL)  # 1
            case "never":
                return how
            case _:  # 1
                raise ValueError(how)  # 1
    except OSError:
        return how
    except ValueError:  # 1
        return f"{__doc__} {end.__doc__}"  # 1
    finally:
        how = ""  # 1
    return how  # 1


class Kind:  # 1
    name = "kind"  # 1
'''
PROGRAM = """
import sys
sys.path.append(sys.argv[1])
import module
sys.stdout.write(module.end(sys.argv[2]))
"""


@pytest.mark.starts
def test_a_line_counts_in_each_process_however_it_ends(tmp_path: Path) -> None:
    root, hits = tmp_path / "root", tmp_path / "results" / "hits"
    root.mkdir()
    path = root / "module.py"
    path.write_text(MODULE)

    def run(how: str) -> tuple[int, bytes]:
        isolated = [sys.executable, "-I", "-S", "-c", PROGRAM, str(root), how]
        done = subprocess.run(isolated, stdout=subprocess.PIPE)
        return done.returncode, done.stdout

    with marks(root, hits) as places:
        assert run("in a fork") == (0, b"")
        assert run("by a signal") == (-9, b"")
        assert run("by an error") == (0, b"A docstring. Another one.")
    lines = enumerate(MODULE.splitlines(), start=1)
    assert reached(hits, places) == {str(path): [n for n, line in lines if line.endswith("# 1")]}
    assert not [*root.rglob("*.pyc")]
