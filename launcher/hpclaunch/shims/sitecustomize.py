"""Runs at the start of every Python that has this directory in its PYTHONPATH.

`python -m torch.distributed.run` and `torch.distributed.launch` become hpclaunch, like the
`torchrun` beside this file, even for a program that calls its own interpreter by its path.
Otherwise nothing is done and nothing stays, as with worker/site/sitecustomize.py. It may be any
Python, so this file is written for old ones.
"""

import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))
_words = getattr(sys, "argv", [])
if _words[:1] == ["-m"] and hasattr(sys, "orig_argv"):  # from Python 3.10 on
    # Either in a word of its own, or behind the -m, as in -um torch.distributed.run.
    _module = sys.orig_argv[-len(_words)]
    if _module.startswith("-"):
        _module = _module.partition("m")[2]
    if _module in ("torch.distributed.run", "torch.distributed.launch"):
        _shim = os.path.join(_here, "torchrun")
        _place = "--in-place-of=" + _module + ":" + sys.executable
        os.execv(_shim, [_shim, _place] + _words[1:])

sys.path[:] = [entry for entry in sys.path if entry != _here]
sys.path_importer_cache.pop(_here, None)
_ours = sys.modules.pop("sitecustomize", None)  # held, or old Pythons would clear our names

# Whatever it raises is for Python to show, as ever; that there is none, Python expects.
__import__("sitecustomize")
