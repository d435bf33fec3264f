"""Ends a forked worker as Python ends a new interpreter, except for the template's modules.

Their objects are frozen (`gc.freeze`), so that collections leave their pages shared. Without more,
Python would clear them one by one when a worker ends, which copies all of these pages: this takes
longer than the end of a new interpreter. With `gc.unfreeze`, it would in addition walk through all
of them, three times. So they are left to the end of the process.

What the script has made is not frozen, nor is `__main__`. It is finalized as ever: threads are
joined, exit handlers run, garbage is collected, `__main__` and the modules that the worker has
imported itself are collected with what only they hold, and C and C++ libraries run their own exit
handlers. torch.distributed is not left out either: process groups are destroyed with it.
"""

import ctypes
import gc
import sys

KEPT = ("sys", "builtins")  # Python clears these itself, and last
GROUPS = "torch.distributed"  # whose modules hold process groups, which end threads

_template = {}  # type: ignore[var-annotated]  # name of a module to leave out: its id
_left_out = []  # type: ignore[var-annotated]  # modules; frozen, and thus never freed


def freeze():
    """Exclude from collections everything that is here, except `__main__` and what it will hold."""
    main = sys.modules["__main__"]
    for name, module in sys.modules.items():
        # multiprocessing gives `__main__` another name as well.
        if name not in KEPT and not name.startswith(GROUPS) and module is not main:
            _template[name] = id(module)
    own = [ctypes.py_object(main), ctypes.py_object(vars(main))]
    for tracked in own:
        ctypes.pythonapi.PyObject_GC_UnTrack(tracked)
    gc.freeze()
    for untracked in own:
        ctypes.pythonapi.PyObject_GC_Track(untracked)


def at_exit():
    """Have the modules left out at the right moment: Python lets go of this attribute of `sys`
    after it has collected garbage, and before it clears the modules."""
    sys.__interactivehook__ = Parting()  # type: ignore[assignment]


class Parting:
    """Leaves out the template's modules when it is finalized itself."""

    def __del__(self):
        for name, number in _template.items():
            if id(sys.modules.get(name)) == number:
                _left_out.append(sys.modules.pop(name))
        main = sys.modules.get("__main__")
        if isinstance(main, type(sys)):
            unwind(main)


def unwind(main):
    """Have Python clear `__main__` even if a module that was left out refers to a function or class
    of it, so that it cannot be collected: the newest first, so that each still finds what it uses.
    """
    names = vars(main)
    newest_first = [*names.items()][::-1]
    names.clear()
    names.update(newest_first)
    names[""] = main  # Python clears only modules that exist
