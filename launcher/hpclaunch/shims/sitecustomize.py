"""Runs at the start of every Python that has this directory in its PYTHONPATH.

`python -m torch.distributed.run` and `torch.distributed.launch` become hpclaunch, like the
`torchrun` beside this file, even if a program calls its own interpreter by its path. For other
programs, this file does nothing and leaves no trace. It must work in old versions of Python.
"""

import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))
_words = getattr(sys, "argv", [])
if _words[:1] == ["-m"] and hasattr(sys, "orig_argv"):  # from Python 3.10 on
    # The module's name is a word after -m or -um, or part of the same word, as in -mNAME.
    _module = sys.orig_argv[-len(_words)]
    if _module.startswith("-"):
        _module = _module.partition("m")[2]
    if _module in ("torch.distributed.run", "torch.distributed.launch"):
        _shim = os.path.join(_here, "torchrun")
        _place = "--in-place-of=" + _module + ":" + sys.executable
        os.execv(_shim, [_shim, _place] + _words[1:])

sys.path[:] = [entry for entry in sys.path if entry != _here]
sys.path_importer_cache.pop(_here, None)
_ours = sys.modules.pop("sitecustomize", None)  # kept, or old Pythons clear its names

# Python reports exceptions of the user's module, and ignores an ImportError if there is no module.
__import__("sitecustomize")
