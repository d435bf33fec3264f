"""A script that calls a function, for `hpclaunch.launch`.

cloudpickle passes a function of a module by name, and one of a notebook by value. The pickle is in
a directory that only this user can enter. No other pickle is loaded without restrictions.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .core.protocol.errors import UsageError
from .worker import private_files

# Processes that a worker starts with multiprocessing also run the script. There it only defines, in
# `__main__`, the names that the function uses. These names may replace any of the script's, so
# nothing looks up a name after that. The hash distinguishes functions of one name.
SCRIPT = """\
# The function {name}, {digest}
import pickle
import sys
{torch}
sys.path[:] = {path!r}

def load():
    with open({file!r}, "rb") as passed:
        function, args = pickle.load(passed)
    used = getattr(getattr(function, "func", function), "__globals__", {{}})  # of a partial, too
    globals().update({{name: used[name] for name in used if not name.startswith("__")}})
    return lambda: function(*args)

if __name__ == "__main__":
    load()()
else:
    load()
"""
NAME = re.compile(r"\W+")


def write_script(function: Callable[..., object], args: Sequence[Any], directory: Path) -> Path:
    """Write a script that calls the function into this private directory. Raises UsageError."""
    try:
        import cloudpickle
    except ImportError as e:
        raise UsageError("to launch a function, install cloudpickle") from e
    name = getattr(function, "__qualname__", "") or type(function).__qualname__
    try:
        data: bytes = cloudpickle.dumps((function, tuple(args)))
    except Exception as e:  # code of the objects may raise any exception
        raise UsageError(
            f"{name} cannot be passed to workers: {e}; open files, locks and the like, and use "
            "only plain values, from within the function"
        ) from e
    file = directory / "function.pickle"
    script = directory / f"{NAME.sub('_', name).strip('_') or 'function'}.py"
    text = SCRIPT.format(
        name=name,
        digest=hashlib.sha256(data).hexdigest(),
        torch="import torch  # the function uses it\n" if b"torch" in data else "",
        path=[entry or os.getcwd() for entry in sys.path],
        file=str(file),
    )
    for path, content in ((file, data), (script, text.encode(errors="surrogateescape"))):
        with open(path, "wb", opener=private_files.open_file) as f:
            f.write(content)
    return script
