"""Runs at the start of every Python below a worker: its directory leads their PYTHONPATH.

This may be any Python, one that knows nothing of torch too, so it is written for old ones, does
next to nothing, and leaves no trace but the hooks: afterwards the path is as it would be without
us, and `sitecustomize` is the user's or the system's, should there be one.
"""

import os
import sys

if "HPCLAUNCH_STORE" in os.environ and sys.version_info >= (3, 6):
    try:
        __import__("_hpclaunch_hooks")
    except Exception:  # noqa: S110
        pass  # a worker without the hooks is better than none

_serve = None
if "HPCLAUNCH_TEMPLATE" in os.environ:  # such a process is no worker and must not become one
    try:
        _serve = __import__("_hpclaunch_template").serve
    except BaseException:
        os._exit(126)

_here = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [entry for entry in sys.path if entry != _here]
sys.path_importer_cache.pop(_here, None)
if _serve is not None:
    _serve()  # returns in the workers that are forked
_ours = sys.modules.pop("sitecustomize", None)  # held, or old Pythons would clear our names

# Whatever it raises is for Python to show, as ever; that there is none, Python expects.
__import__("sitecustomize")
