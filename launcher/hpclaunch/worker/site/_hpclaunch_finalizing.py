"""Let a forked worker end as a new interpreter does, except that the modules of the template stay.

The objects of these modules are frozen (`gc.freeze`), so that collections leave their pages shared.
Nevertheless, Python would clear them one by one at the end of a worker. That copies all of their
pages, and takes longer than the end of a new interpreter. With `gc.unfreeze`, Python would also
traverse them three times. So they are left to the end of the process.

The objects of the script are not frozen, nor is `__main__`. They are finalized as usual: threads
are joined, exit handlers run, garbage is collected, `__main__` and the modules that the worker has
imported itself are cleared, and C and C++ libraries run their own exit handlers. torch.distributed
is cleared as well, which destroys process groups.
"""

import ctypes
import gc
import sys

KEPT = ("sys", "builtins")  # Python clears these itself, and last
GROUPS = "torch.distributed"  # its modules hold process groups, which have threads to end

_template = {}  # type: ignore[var-annotated]  # modules to leave out: their ids by name
_left_out = []  # type: ignore[var-annotated]  # modules to keep until the process ends


def freeze():
    """Exclude all objects that exist from collections, except `__main__` and its dictionary."""
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
    """Have the modules of the template left out at the right moment: Python drops this attribute of
    `sys` after it has collected garbage, and before it clears the modules."""
    sys.__interactivehook__ = TemplateRemover()  # type: ignore[assignment]


class TemplateRemover:
    """An object whose finalizer takes the modules of the template out of `sys.modules`."""

    def __del__(self):
        for name, number in _template.items():
            if id(sys.modules.get(name)) == number:
                _left_out.append(sys.modules.pop(name))
        main = sys.modules.get("__main__")
        if isinstance(main, type(sys)):
            unwind(main)


def unwind(main):
    """Have Python clear `__main__`, the newest names first, since objects may use older ones.

    Without this, it would not be cleared at all if a module that was left out refers to one of its
    functions or classes.
    """
    names = vars(main)
    newest_first = [*names.items()][::-1]
    names.clear()
    names.update(newest_first)
    names[""] = main  # Python clears only modules that exist
