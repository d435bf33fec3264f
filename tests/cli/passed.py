"""Functions that are passed to workers, which import this module: it is a small one."""

import os
import sys
from pathlib import Path


def shout(word, *, times=1):
    sys.stdout.write(f"{word.upper() * times} {os.environ['RANK']} {sys.argv[1:]}\n")


def modes(path):
    """Write the modes of the directory of the script that runs, and of the files in it."""
    directory = Path(sys.argv[0]).parent
    found = {oct(p.stat().st_mode & 0o777) for p in (directory, *directory.glob("*"))}
    path.write_text("\n".join([str(directory), *sorted(found)]))
