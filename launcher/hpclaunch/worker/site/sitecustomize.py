"""Runs at the start of every Python below a worker, since its directory comes first in PYTHONPATH.

This may be any Python, even an old one without torch. So this file is written for old Pythons, and
leaves no trace but the hooks: afterwards, `sys.path` is what it would be without this file, and
`sitecustomize` is the user's or the system's, if there is one.

The template (`_hpclaunch_template.py`) imports torch only after Python has run all other startup
code (sitecustomize, usercustomize), as it does before a script.
"""

import os
import sys

# Child processes of a template inherit the variable, but have another parent.
_template = os.environ.get("HPCLAUNCH_TEMPLATE", "").split(",")[0] == str(os.getppid())
_startup = None

if "HPCLAUNCH_STORE" in os.environ or _template:
    try:
        __import__("_hpclaunch_hooks")
        if _template:
            _startup = __import__("_hpclaunch_startup").Startup(__import__("_hpclaunch_parking"))
    except Exception:  # also a SyntaxError of a Python before 3.8
        if _template:  # this process is no worker and must not become one
            sys.excepthook(*sys.exc_info())
            sys.stderr.flush()
            os._exit(126)
        # The worker runs without the hooks.

_here = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [entry for entry in sys.path if entry != _here]
sys.path_importer_cache.pop(_here, None)
_ours = sys.modules.pop("sitecustomize", None)  # kept, or old Pythons clear its names

try:
    # Python reports exceptions of the user's module, and ignores an ImportError if there is none.
    __import__("sitecustomize")
finally:
    if _startup is not None:
        _startup.serve_next()  # returns in the workers that are forked
