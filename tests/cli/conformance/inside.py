"""The inside of a process that trains: its threads, descriptors, mappings, hooks and functions.

Rank 0 looks three times: first, once it has imported torch, and after some steps of an optimizer.
Rank 1 only takes part in the collectives: an optimizer's import of torch.compile takes a second.
The names of the facts are those of probe.py and docs/inside-workers.md. "Functions" are apart: they
have one fact for each attribute of each module.
"""

import atexit
import gc
import io
import json
import os
import signal
import sys
import threading
import time
import types
import warnings

LOOKS = {}
PASSED_OVER = ("__main__", "__mp_main__", "_hpclaunch")
LEAST_OF_OURS = 60  # descriptors of the launcher, in `_hpclaunch_layout.py`


def made_by(function):
    """Return the files with the code of a function, and of those that it wraps."""
    files = []
    while function is not None:
        code = getattr(function, "__code__", None)
        files.append(os.path.basename(code.co_filename) if code else kind(function))
        function = vars(function).get("__wrapped__") if code else None
    return " ".join(files)


def kind(value):
    return f"{type(value).__module__}.{type(value).__qualname__}"


def functions():
    """Return what each attribute of each module is: functions of Python by their own names, since
    modules import them from each other, and all other attributes by their types."""
    found = {}

    def add(name, value):
        # What is not checked by its type may do something when it is asked.
        if type(value) in (staticmethod, classmethod, types.MethodType):
            value = value.__func__
        if type(value) is types.FunctionType:
            own = f"{value.__module__}.{value.__qualname__}"
            if "<" not in own and not own.startswith("_hpclaunch"):
                name = own
            found.setdefault(name, set()).add(made_by(value))
        else:
            found.setdefault(name, set()).add(kind(value))
        if type(value) is dict:
            for key, item in value.copy().items():
                if type(key) is str and type(item) is types.FunctionType:
                    add(f"{name}[{key}]", item)

    for module in [*sys.modules.values()]:
        if type(module) is not types.ModuleType or module.__name__.startswith(PASSED_OVER):
            continue
        for name, value in vars(module).copy().items():
            if name.startswith("__") and name.endswith("__"):
                continue
            add(f"{module.__name__}.{name}", value)
            if isinstance(value, type) and value.__module__ == module.__name__:
                for inner, method in vars(value).copy().items():
                    add(f"{value.__module__}.{value.__qualname__}.{inner}", method)
    return {name: sorted(kinds) for name, kinds in found.items()}


def descriptors():
    """Return what each descriptor is. Those that libraries have opened are counted, since threads
    open them in any order."""
    found = {}
    for fd in sorted(map(int, os.listdir("/proc/self/fd"))):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}").split("[")[0]
        except OSError:  # that of the directory itself
            continue
        if fd > 2:  # each launcher has its own files for output
            same = sum(known == target for known in found.values())
            found[fd if fd >= LEAST_OF_OURS else f"{target} {same}"] = target
    return found


def mappings():
    with open("/proc/self/maps") as f:
        paths = {"".join(line.split(None, 5)[5:]).strip() for line in f}
    return {path for path in paths if "/memfd:" in path or "/dev/" in path}


def threads():
    names = []
    for thread in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{thread}/comm") as f:
            names.append(f.read().strip())
    return sorted(names)


def look():
    facts = {
        "threads": threads(),
        "threading.enumerate": [thread.name for thread in threading.enumerate()],
        "atexit.callbacks": atexit._ncallbacks(),
        "gc.frozen": gc.get_freeze_count() > 0,
        "sys.path_hooks": [getattr(hook, "__qualname__", kind(hook)) for hook in sys.path_hooks],
    }
    for name in ("stdout", "stderr"):
        buffer = getattr(sys, name).buffer
        facts[f"sys.{name}"] = type(getattr(buffer, "raw", buffer)) is io.FileIO
    with open("/proc/self/status") as f:
        facts |= {f"status.{k}": v.strip() for k, _, v in (line.partition(":") for line in f)
                  if k.startswith("Sig") and k != "SigQ"}  # fmt: skip
    with open("/proc/self/environ", "rb") as f:
        outside = {*f.read().split(b"\0")} - {b""}
    facts["/proc/self/environ differs"] = outside != {b"=".join(i) for i in os.environb.items()}
    optimizer = sys.modules.get("torch.optim.optimizer")
    for when in ("pre", "post"):
        name = f"torch.optim.optimizer._global_optimizer_{when}_hooks"
        hooks = getattr(optimizer, name.rpartition(".")[2], {})
        facts[name] = [made_by(hook) for hook in hooks.values()]
    many = {
        "fd": descriptors(),
        "map": dict.fromkeys(mappings(), True),
        "meta_path": dict.fromkeys((kind(f) for f in sys.meta_path if type(f) is not type), True),
        "module": dict.fromkeys(sys.modules, True),
        "signal": {int(s): str(signal.getsignal(s)) for s in signal.valid_signals()},
    }
    for name, items in many.items():
        facts |= {f"{name}.{item}": value for item, value in items.items()}
    return {"facts": facts, "functions": functions()}


def look_if_first(moment):
    if os.environ["RANK"] == "0":
        LOOKS[moment] = look()


def is_asked():
    """The thread that answers has begun to read."""
    return any(target.startswith("pipe:") for target in descriptors().values())


look_if_first("first")
gc.disable()  # what is imported stays, and collections cost a tenth of the time
import torch  # noqa: E402
import torch.distributed  # noqa: E402

warnings.simplefilter("ignore")  # some attributes of torch are deprecated
look_if_first("torch")
torch.distributed.init_process_group("gloo")
if os.environ["RANK"] == "0":
    weights = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.SGD([weights], lr=0.1)
for _ in range(3):
    if os.environ["RANK"] == "0":
        (weights * weights).sum().backward()
        torch.distributed.all_reduce(weights.grad)
        optimizer.step()
    else:
        torch.distributed.all_reduce(torch.zeros(3))
if os.environ["RANK"] == "0" and "HPCLAUNCH_PROGRESS" in os.environ:
    while not is_asked():
        time.sleep(0.01)
look_if_first("training")
path = os.path.join(os.environ["CONFORMANCE_OUT"], os.environ["RANK"] + ".json")
with open(path, "w", encoding="utf-8") as f:
    f.write(json.dumps(LOOKS))  # json.dump is ten times slower
torch.distributed.barrier()  # the other rank's sockets are still there when rank 0 looks
torch.distributed.destroy_process_group()
