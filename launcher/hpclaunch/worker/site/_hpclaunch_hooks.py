"""Patches of torch and other libraries in a worker, applied when the script imports them.

A script can choose its own rendezvous. TORCHELASTIC_USE_AGENT_STORE says that the launcher serves
the store at HPCLAUNCH_STORE, but torch applies it to every address: all ranks become clients, and
wait for a server that nobody starts. With these hooks it applies to the launcher's store only, and
rank 0 serves a store at any other address. A file:// store gets a new file in every round, since
the old file has the addresses of dead processes. Both use the worker's rank if the script gives
none.

A worker continues when its output files cannot grow (`_hpclaunch_output`), and a worker can
destroy its process groups right after a collective. `_hpclaunch_progress` records the progress of
a script. Where workers share a GPU, `_hpclaunch_backend` checks the backend of every process group.

The hooks patch private names of torch, from 2.4 on. If a name is missing, its patch is left out.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is not imported here
    from collections.abc import Callable
    from typing import Any

    from ._hpclaunch_errors import record_errors
    from ._hpclaunch_output import keep_writing
    from ._hpclaunch_progress import progress, wrap
else:
    from _hpclaunch_errors import record_errors
    from _hpclaunch_output import keep_writing
    from _hpclaunch_progress import progress, wrap

RENDEZVOUS = "torch.distributed.rendezvous"
ENGINE = "deepspeed.runtime.engine"
REQUESTS = "transformers.trainer_jit_checkpoint"
RARE = (ENGINE, REQUESTS)  # not installed everywhere
AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
_here = os.path.dirname(os.path.abspath(__file__))
_loaded: "dict[str, Any]" = {}  # name of a module in this directory: the module


class Finder:
    """A finder on `sys.meta_path` that patches modules, and removes itself after the last one."""

    def __init__(self) -> None:
        self.awaited = set(PATCHES)

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        spec = find_beyond(self, name, path, target) if name in self.awaited else None
        if spec is not None:
            self._attach(spec.loader, name)
        return spec

    def _attach(self, loader: "Any", name: str) -> None:
        def exec_module(module: "Any") -> None:
            del loader.exec_module
            self._seen(name)
            load(module)
            for patch in PATCHES[name]:
                patch(module)

        try:
            load, loader.exec_module = loader.exec_module, exec_module
        except AttributeError:
            pass  # no loader, or one that is not Python's and has no settable attributes

    def _seen(self, name: str) -> None:
        self.awaited.discard(name)
        if name == RENDEZVOUS:
            self.awaited -= {name for name in RARE if not find_beyond(self, name.partition(".")[0])}
        if not self.awaited:
            remove_finder(self)


def find_beyond(one: object, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
    """Return what the other finders on `sys.meta_path` find."""
    for finder in sys.meta_path:
        find_spec = getattr(finder, "find_spec", None)
        spec = find_spec(name, path, target) if find_spec and finder is not one else None
        if spec is not None:
            return spec
    return None


def remove_finder(one: object) -> None:
    # A new list, since importing threads may be iterating over the old one.
    sys.meta_path = [finder for finder in sys.meta_path if finder is not one]


def in_round() -> bool:
    """Return whether the launcher's variables are meant for this process. A launcher that a worker
    starts, such as torchrun, gives its own store and run id to its workers."""
    ids = {os.environ.get(name) for name in ("HPCLAUNCH_RUN_ID", "TORCHELASTIC_RUN_ID")}
    return "HPCLAUNCH_STORE" in os.environ and len(ids - {None}) < 2


def launchers_port() -> str:
    return os.environ["HPCLAUNCH_STORE"].rpartition(":")[2]


def own_stores(rendezvous: "Any") -> None:
    import functools
    import threading

    try:
        create = rendezvous._create_c10d_store
        use_agent_store = rendezvous._torchelastic_use_agent_store
    except AttributeError:
        return
    thread = threading.local()

    @functools.wraps(use_agent_store)
    def use_agent_store_here() -> bool:
        return use_agent_store() and not getattr(thread, "creates_own", False)

    @functools.wraps(create)
    def create_store(hostname: str, port: int, *args: "Any", **kwargs: "Any") -> "Any":
        # The port identifies the launcher's store, whatever name the script uses for rank 0's host:
        # no other server there can have this port.
        if not (use_agent_store() and in_round()) or str(port) == launchers_port():
            return create(hostname, port, *args, **kwargs)
        thread.creates_own = True
        # The C++ side reads the variable, too: it would take another job's server at MASTER_PORT
        # for the launcher's store, and join it. os.environ is not changed.
        os.putenv(AGENT_STORE, "False")
        try:
            return create(hostname, port, *args, **kwargs)
        finally:
            os.putenv(AGENT_STORE, "True")
            thread.creates_own = False

    rendezvous._torchelastic_use_agent_store = use_agent_store_here
    rendezvous._create_c10d_store = create_store


def own_ranks_and_files(rendezvous: "Any") -> None:
    import functools

    def completing(scheme: str, handle: "Any") -> "Any":
        @functools.wraps(handle)
        def handle_completed(url: str, *args: "Any", **kwargs: "Any") -> "Any":
            url = with_rank(url)
            return handle(of_round(url) if scheme == "file" else url, *args, **kwargs)

        return handle_completed

    handlers = getattr(rendezvous, "_rendezvous_handlers", {})
    for scheme in ("tcp", "file"):
        if scheme in handlers:
            handlers[scheme] = completing(scheme, handlers[scheme])


def own_backends(c10d: "Any") -> None:
    """Check the backend in every call: forked workers get their variables after the import."""
    import functools

    def choosing(create: "Any") -> "Any":
        @functools.wraps(create)
        def create_group(*args: "Any", **kwargs: "Any") -> "Any":
            if "HPCLAUNCH_RANKS_PER_GPU" in os.environ and in_round():
                args, kwargs = beside("_hpclaunch_backend").chosen(c10d, create, args, kwargs)
            return create(*args, **kwargs)

        return create_group

    for name in ("init_process_group", "new_group"):
        create = getattr(c10d, name, None)
        if create is not None:
            setattr(c10d, name, choosing(create))


def ends_in_order(c10d: "Any") -> None:
    wrap(c10d, "destroy_process_group", await_gloo)


def await_gloo(*_: object) -> None:
    """Wait up to 1 s for threads of gloo that need the GIL, before the process groups end.

    gloo's threads take the GIL to release the tensors of a collective. If DDP's reducer then has
    the last reference to the group, it holds the GIL and waits for these threads for ever. With
    torch 2.13, about every fourth script that ends right after a collective hangs, with any
    launcher.
    """
    import time

    limit = time.monotonic() + 1
    while in_round() and (states := states_of_gloo()):
        time.sleep(0.001)  # releases the GIL
        if b"R" not in states or time.monotonic() > limit:
            break


def states_of_gloo() -> "list[bytes]":
    """Return the states, as in proc(5), of gloo's threads. In older versions, at least 2.4 to 2.6,
    these have the name of the thread that has created them, taken to be the calling one."""
    from _thread import get_native_id

    own, own_name = str(get_native_id()), b""
    states: dict[bytes, list[bytes]] = {}  # of the other threads, by their names
    try:
        threads = os.listdir("/proc/self/task")
    except OSError:
        return []  # this process has too many open files
    for thread in threads:
        try:
            with open(f"/proc/self/task/{thread}/stat", "rb") as f:
                _, _, rest = f.read().partition(b"(")
        except OSError:
            continue  # the thread has ended meanwhile
        name, _, rest = rest.rpartition(b") ")
        if thread == own:
            own_name = name
        else:
            states.setdefault(name, []).append(rest[:1])
    return states.get(b"pt_gloo_runloop") or states.get(own_name, [])


def beside(name: str) -> "Any":
    """Return a module of this directory. It is loaded on first use, and not in `sys.modules`."""
    if name not in _loaded:
        from importlib.util import module_from_spec, spec_from_file_location

        spec = spec_from_file_location(name, os.path.join(_here, name + ".py"))
        assert spec is not None and spec.loader is not None  # noqa: PT018
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        _loaded[name] = module
    return _loaded[name]


def with_rank(url: str) -> str:
    """Return the URL with this worker's rank and world size, if the script gives neither. Scripts
    for MPI leave them to MPI; with another backend, torch would refuse the URL."""
    from urllib.parse import urlparse

    query = urlparse(url).query
    given = {pair.partition("=")[0] for pair in query.split("&")}
    ranks = [os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE")]
    if not in_round() or given & {"rank", "world_size"} or not all(r.isdecimal() for r in ranks):
        return url
    return "{}{}rank={}&world_size={}".format(url, "&" if query else "?", *ranks)


def of_round(url: str) -> str:
    """Return a file's URL in this round: `<path>.<run id>.<restarts>.<the launcher's port>`. Run
    ids may be used again, but every round has a new port."""
    import re
    from urllib.parse import urlparse

    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "")
    if not (urlparse(url).path and in_round() and restarts.isdecimal()):
        return url
    run_id = re.sub(r"[^\w.-]", "_", os.environ.get("TORCHELASTIC_RUN_ID", ""))
    end = len(re.split("[?#]", url, maxsplit=1)[0])
    return f"{url[:end]}.{run_id}.{restarts}.{launchers_port()}{url[end:]}"


PATCHES: "dict[str, tuple[Callable[[Any], None], ...]]" = {
    RENDEZVOUS: (own_stores, own_ranks_and_files),
    "torch.distributed.distributed_c10d": (own_backends, progress.watch_groups, ends_in_order),
    "torch.optim.optimizer": (progress.watch_optimizers,),
    "torch.amp.grad_scaler": (progress.watch_scalers,),
    "torch.cuda.graphs": (progress.watch_graphs,),
    ENGINE: (progress.watch_engines,),
    REQUESTS: (progress.watch_requests,),
    "torch.serialization": (progress.watch_saves,),
}
sys.meta_path.insert(0, Finder())
record_errors()
if "HPCLAUNCH_STORE" in os.environ:
    keep_writing()
    progress.begin()
