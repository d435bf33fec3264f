"""The backend that torch.distributed uses where several workers share a GPU.

NCCL up to 2.29 refuses two ranks on one GPU, or hangs. From 2.30 on, a variable enables two, as an
experimental feature; more ranks exhaust the GPU and hang. gloo always works.

The hooks load this file only in workers that share a GPU (HPCLAUNCH_RANKS_PER_GPU), when they make
a process group. A group of one rank may use NCCL, as independent replicas do.
"""

import inspect
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is not imported here
    from collections.abc import Callable
    from typing import Any

RANKS_PER_GPU = "HPCLAUNCH_RANKS_PER_GPU"
SHARED_BACKEND = "HPCLAUNCH_SHARED_BACKEND"
ENABLE = "NCCL_MULTI_RANK_GPU_ENABLE"
SINCE = (2, 30)  # the first NCCL that reads ENABLE
MOST = 2  # ranks per GPU for which this module sets ENABLE; for more, the user has to

_warned: "list[str]" = []  # texts that were written


def chosen(
    c10d: "Any", create: "Callable[..., Any]", args: "tuple[Any, ...]", kwargs: "dict[str, Any]"
) -> "tuple[tuple[Any, ...], dict[str, Any]]":
    """Return the arguments for `create`, one of torch's two functions that make process groups."""
    try:
        call = inspect.signature(create).bind(*args, **kwargs)
    except TypeError:
        return args, kwargs  # torch reports the wrong arguments
    given = call.arguments
    first = create.__name__ == "init_process_group"
    if os.environ.get(SHARED_BACKEND) == "gloo":
        use_gloo(given, first)
    elif (first or given.get("backend")) and not is_alone(given, first):
        check_nccl(c10d, given)  # a later group without a backend is like the first
    return call.args, call.kwargs


def is_alone(given: "dict[str, Any]", first: bool) -> bool:
    if not first:
        ranks = given.get("ranks")
        return ranks is not None and len(ranks) < 2
    method = given.get("init_method") or "env://"
    if given.get("store") is None and method.startswith("env://"):
        size = given.get("world_size", -1)
        return str(os.environ.get("WORLD_SIZE") if size == -1 else size) == "1"
    return given.get("world_size") == 1


def use_gloo(given: "dict[str, Any]", first: bool) -> None:
    backend = given.get("backend")
    asked = "undefined" if backend is None else str(backend).lower()
    if asked != "undefined":
        pairs = [pair.rpartition(":") for pair in asked.split(",")]
        if "nccl" not in (name for _, _, name in pairs):
            return
        names = ((*rest, "gloo" if name == "nccl" else name) for *rest, name in pairs)
        given["backend"] = ",".join(map("".join, names))
    elif first:
        given["backend"] = "gloo"
    for name in ("pg_options", "device_id"):  # only for NCCL; device_id makes it connect at once
        given.pop(name, None)
    if first:
        what = "torch's default" if backend is None else repr(asked)
        ranks = os.environ.get(RANKS_PER_GPU, "several")
        write_once(
            f"{ranks} workers share a GPU: init_process_group takes gloo in place of {what} "
            "(--shared-backend gloo)"
        )


def check_nccl(c10d: "Any", given: "dict[str, Any]") -> None:
    """Raise RuntimeError if the group needs NCCL, and this version cannot make it."""
    devices = backends(c10d, given.get("backend"))
    if "nccl" not in devices.values():
        return
    version = nccl_version()
    if version is None:
        return  # torch raises an error: it has no NCCL
    ranks = int(os.environ[RANKS_PER_GPU])
    allowed = os.environ.get(ENABLE)
    number = ".".join(map(str, version))
    if version[:2] >= SINCE:
        if allowed is None and ranks <= MOST:
            os.environ[ENABLE] = "1"
            write_once(f"{ranks} workers share a GPU: {ENABLE}=1 has NCCL {number} allow it")
            return
        if allowed not in (None, "0"):
            return
    trouble = f"{ranks} workers share this GPU, and NCCL {number} {reason(version, allowed)}"
    if set(devices.values()) == {"nccl"} or given.get("device_id") is not None:
        more = f" To try it all the same: export {ENABLE}=1." if version[:2] >= SINCE else ""
        raise RuntimeError(
            f"{trouble}. Start with --shared-backend gloo, which changes nothing in the script, "
            'or write init_process_group("gloo"), or start fewer workers (--nproc) so that each '
            f"has a GPU of its own.{more}"
        )
    write_once(
        f"{trouble}: only tensors on the CPU can be communicated; --shared-backend gloo is for all",
        "warning: ",
    )


def reason(version: "tuple[int, ...]", allowed: "str | None") -> str:
    if version[:2] < SINCE:
        return "allows one on each"
    if allowed == "0":
        return f"must not allow it ({ENABLE}=0)"
    return f"hangs easily with more than {MOST}"


def backends(c10d: "Any", backend: object) -> "dict[str, str]":
    """Return {device: backend} for a backend's name; the default depends on torch's version."""
    name = "undefined" if backend is None else str(backend).lower()
    if name != "undefined" and "nccl" not in name:
        return {}
    try:
        found: dict[str, str] = c10d.BackendConfig(c10d.Backend(name)).get_device_backend_map()
        return found
    except (AttributeError, ValueError):
        return {}  # an unknown version of torch, or torch will reject the name


def nccl_version() -> "tuple[int, ...] | None":
    """Return the version of the NCCL that is loaded, such as (2, 29, 7), or None, without opening a
    device."""
    try:
        version: tuple[int, ...] = sys.modules["torch"].cuda.nccl.version()[:3]
        return version
    except AttributeError:
        return None


def write_once(text: str, kind: str = "") -> None:
    """Write a line once, from the first worker of each node."""
    if text not in _warned and os.environ.get("HPCLAUNCH_LOCAL_RANK", "0") == "0":
        sys.stderr.write(f"hpclaunch: {kind}{text}\n")
    _warned.append(text)
