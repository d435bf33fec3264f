"""Runs at the start of every Python below a worker, since its directory comes first in PYTHONPATH.

That may be any Python, even an old one without torch. So this file is written for old Pythons, and
leaves nothing behind but the hooks: afterwards, `sys.path` is what it would be without this file,
and `sitecustomize` is the user's or the system's, if there is one.

In the template (`_hpclaunch_template.py`), everything else that Python runs before a script runs
first, as in a fresh interpreter. Only then does the template import torch.
"""

import os
import sys

# Children of a template have the variable too, but another parent.
_template = os.environ.get("HPCLAUNCH_TEMPLATE", "").split(",")[0] == str(os.getppid())
_startup = None

if "HPCLAUNCH_STORE" in os.environ or _template:
    try:
        __import__("_hpclaunch_hooks")
        if _template:
            _startup = __import__("_hpclaunch_startup").Startup(__import__("_hpclaunch_parking"))
    except Exception:  # also a SyntaxError of a Python before 3.8
        if _template:  # this process is no worker and must not become one
            os._exit(126)
        # A worker without the hooks is better than none.

_here = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [entry for entry in sys.path if entry != _here]
sys.path_importer_cache.pop(_here, None)
_ours = sys.modules.pop("sitecustomize", None)  # held, or old Pythons would clear our names

try:
    # Python itself shows what it raises, and expects that there may be none.
    __import__("sitecustomize")
finally:
    if _startup is not None:
        _startup.serve_next()  # returns in the workers that are forked
