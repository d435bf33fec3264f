"""Let a forked worker end as a new interpreter does, except that the modules of the template stay.

The objects of these modules are frozen (`gc.freeze`), so that collections leave their pages shared.
Nevertheless, Python would clear them one by one at the end of a worker. That copies all of their
pages, and takes longer than the end of a new interpreter. With `gc.unfreeze`, Python would also
traverse them three times. So they are left to the end of the process.

The objects of the script are not frozen, nor is `__main__`. They are finalized as usual: threads
are joined, exit handlers run, garbage is collected, `__main__` and the modules that the worker has
imported itself are cleared, and streams of C are flushed. torch.distributed is cleared as well,
which destroys process groups.

After that, torch's static destructors would take all of its operators out of the dispatcher, one by
one, which takes longer than all before. A process runs the exit handlers of all libraries or of
none. A worker runs none if all libraries that are loaded are known to need none. It runs them if a
library was preloaded, or is CUDA's, or of an extension: profilers, coverage and files of HDF5 rely
on them.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # what only type checkers need
    from types import ModuleType

KEPT = ("sys", "builtins")  # Python clears these itself, and last
GROUPS = "torch.distributed"  # its modules hold process groups, which have threads to end
PRELOADS = ("LD_PRELOAD", "LD_AUDIT")
# Their exit handlers have no effect beyond the process.
HARMLESS = ("/lib-dynload/", "-packages/numpy/", "-packages/torch/")
OF_SYSTEM = (
    "[",
    "/lib/",
    "/lib64/",
    "/usr/lib/",
    "/usr/lib64/",
)  # how paths of the system's libraries begin

_template: dict[str, int] = {}  # modules to leave out: their ids by name
left_out: list[object] = []  # what to keep until the process ends
_of_torch: frozenset[str] = frozenset()  # libraries that come with torch


def is_plain() -> bool:
    """Return whether no library is loaded yet but Python's own and the system's: neither preloaded,
    nor by a `sitecustomize` or a `.pth` file. Call it before torch is imported.
    """
    if any(map(os.environ.get, PRELOADS)) or os.path.exists("/etc/ld.so.preload"):
        return False
    own = (*OF_SYSTEM, os.path.realpath(sys.base_exec_prefix) + "/")
    with contextlib.suppress(OSError):
        return all(path.startswith(own) and "-packages/" not in path for path in libraries())
    return False


def torch_is_imported() -> None:
    """Remember the libraries that are loaded once torch is, and before anything else."""
    global _of_torch
    with contextlib.suppress(OSError):
        _of_torch = libraries()


def libraries() -> frozenset[str]:
    """Return the paths of all mapped code, except that of libraries with harmless exit handlers."""
    with open("/proc/self/maps", "rb") as maps:  # paths are any bytes
        mappings = [os.fsdecode(line).rstrip().split(None, 5) for line in maps]
    code = (path[0] for _, mode, _, _, _, *path in mappings if path and "x" in mode)
    return frozenset(path for path in code if not any(part in path for part in HARMLESS))


def leave_out_exit_handlers() -> None:
    """Have C's exit() flush the streams of C, and then end the process."""
    libc = ctypes.CDLL(None)
    libc.on_exit(libc._exit, None)  # it gets the exit status
    libc.on_exit(libc.fcloseall, None)  # the last one registered is called first


def freeze() -> None:
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


def at_exit() -> None:
    """Have the modules of the template left out at the right moment: Python drops this attribute of
    `sys` after it has collected garbage, and before it clears the modules."""
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


def unwind(main: ModuleType) -> None:
    """Have Python clear `__main__`, the newest names first, since objects may use older ones.

    Without this, it would not be cleared at all if a module that was left out refers to one of its
    functions or classes.
    """
    names = vars(main)
    newest_first = [*names.items()][::-1]
    names.clear()
    names.update(newest_first)
    names[""] = main  # Python clears only modules that exist
