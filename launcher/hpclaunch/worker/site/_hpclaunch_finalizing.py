"""Lets a forked worker end as a new interpreter does, without finalizing the template's modules.

The objects of these modules are frozen (`gc.freeze`), so that collections leave their pages shared.
At the end of a worker, Python would still clear them one by one. That copies all of their pages,
and takes longer than the end of a new interpreter. If they were unfrozen first, Python would also
traverse them three times. So these objects are left as they are until the process ends.

The script's objects and `__main__` are not frozen, and are finalized as usual: threads are joined,
exit handlers run, garbage is collected, `__main__` and the modules that the worker itself has
imported are cleared, and C streams are flushed. torch.distributed is cleared as well, which
destroys process groups.

After that, torch's static destructors would take all of its operators out of the dispatcher, one by
one, which takes longer than everything before. A process runs the exit handlers of all libraries or
of none. A worker runs none if all loaded libraries are known to need none. It runs them if a
library was preloaded, or belongs to CUDA or an extension: profilers, coverage and HDF5 files rely
on them.
"""

import contextlib
import ctypes
import gc
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # what only type checkers need
    from types import ModuleType

KEPT = ("sys", "builtins")  # Python itself clears these last
GROUPS = "torch.distributed"  # its modules hold process groups, whose threads must end
PRELOADS = ("LD_PRELOAD", "LD_AUDIT")
# Parts of the paths of libraries whose exit handlers have no effect outside the process.
HARMLESS = ("/lib-dynload/", "-packages/numpy/", "-packages/torch/")
# Prefixes of the paths of the system's libraries.
OF_SYSTEM = ("[", "/lib/", "/lib64/", "/usr/lib/", "/usr/lib64/")

_template: "dict[str, int]" = {}  # modules to leave out: name -> id
left_out: "list[object]" = []  # objects to keep until the process ends
_of_torch: "frozenset[str]" = frozenset()  # libraries that come with torch


def is_plain() -> bool:
    """Return whether only Python's own libraries and the system's are loaded: none was preloaded,
    or loaded by a `sitecustomize` or a `.pth` file. Call it before torch is imported.
    """
    if any(map(os.environ.get, PRELOADS)) or os.path.exists("/etc/ld.so.preload"):
        return False
    own = (*OF_SYSTEM, os.path.realpath(sys.base_exec_prefix) + "/")
    with contextlib.suppress(OSError):
        return all(path.startswith(own) and "-packages/" not in path for path in libraries())
    return False


def torch_is_imported() -> None:
    """Record the loaded libraries. Call it right after torch is imported."""
    global _of_torch
    with contextlib.suppress(OSError):
        _of_torch = libraries()


def libraries() -> "frozenset[str]":
    """Return the paths of all mapped code, except libraries with harmless exit handlers."""
    with open("/proc/self/maps", "rb") as maps:  # a path may contain any bytes
        mappings = [os.fsdecode(line).rstrip().split(None, 5) for line in maps]
    code = (path[0] for _, mode, _, _, _, *path in mappings if path and "x" in mode)
    return frozenset(path for path in code if not any(part in path for part in HARMLESS))


def leave_out_exit_handlers() -> None:
    """Have C's exit() flush the C streams, and then end the process."""
    libc = ctypes.CDLL(None)
    libc.on_exit(libc._exit, None)  # called with the exit status
    libc.on_exit(libc.fcloseall, None)  # the last one registered is called first


def freeze() -> None:
    """Exclude all objects that exist from collections, except `__main__` and its dictionary."""
    main = sys.modules["__main__"]
    for name, module in sys.modules.items():
        # multiprocessing also stores `__main__` under another name.
        if name not in KEPT and not name.startswith(GROUPS) and module is not main:
            _template[name] = id(module)
    own = [ctypes.py_object(main), ctypes.py_object(vars(main))]
    for tracked in own:
        ctypes.pythonapi.PyObject_GC_UnTrack(tracked)
    gc.freeze()
    for untracked in own:
        ctypes.pythonapi.PyObject_GC_Track(untracked)


def at_exit() -> None:
    """Have the template's modules left out at the right moment: Python drops this attribute of
    `sys` between collecting garbage and clearing the modules."""
    sys.__interactivehook__ = TemplateRemover()  # type: ignore[assignment]


class TemplateRemover:
    """An object whose finalizer takes the modules of the template out of `sys.modules`."""

    def __del__(self) -> None:
        for name, number in _template.items():
            if id(sys.modules.get(name)) == number:
                left_out.append(sys.modules.pop(name))
        main = sys.modules.get("__main__")
        if isinstance(main, type(sys)):
            unwind(main)
        with contextlib.suppress(OSError):
            if libraries() <= _of_torch:
                leave_out_exit_handlers()


def unwind(main: "ModuleType") -> None:
    """Have Python clear `__main__`, the newest names first, since objects may use older ones.

    `__main__` refers to itself afterwards, since Python clears only modules that are alive.
    Otherwise its names might stay: a left-out module may refer to one of its functions or classes.
    """
    names = vars(main)
    newest_first = [*names.items()][::-1]
    names.clear()
    names.update(newest_first)
    names[""] = main  # keeps `__main__` alive until Python clears it
