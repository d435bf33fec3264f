"""Read the stacks of all threads that Python's faulthandler writes, innermost frame first."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from ..protocol.values import value

_THREAD = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-f]+.*$", re.MULTILINE)
_FRAME = re.compile(r'^  File "(.*)", line (\d{1,9}) in (.*)$', re.MULTILINE)
_LIBRARIES = re.compile(r"/(?:site|dist)-packages/|/lib/python3\.\d+t?/|^<frozen ")
_COLLECTIVES = "/torch/distributed/distributed_c10d.py"
# The function that waits for messages to and from other pipeline stages.
_PIPELINES = ("/torch/distributed/pipelining/schedules.py", "_wait_batch_p2p")
# C++ code begins collectives here: for gradients, and in DDP's constructor and forward().
_BACKWARD = ("/torch/autograd/graph.py", "_engine_run_backward")
_SYNCHRONIZES = ("/torch/nn/parallel/distributed.py", "/torch/distributed/utils.py")
# Methods and functions of torch that wait for a GPU, or for a value from it.
_WAITS_FOR_GPUS = {
    *("synchronize", "_cuda_synchronize", "_accelerator_synchronizeDevice"),
    *("item", "tolist", "cpu", "cuda", "to"),
}
_DEBUGGERS = re.compile(r"/(?:pdb|bdb|ipdb)\.py$|/(?:debugpy|pydevd|IPython)/")
# Functions of torch between a collective's function and the one that waits.
_INNER = {"wrapper", "wait", "_wait", "__exit__"}
LONGEST = 120  # characters of a place


class Frame(NamedTuple):
    file: str
    line: int
    function: str


@value(frozen=True)
class HangStacks:
    """The stacks of the workers of a round that hung."""

    round: int
    at: float  # seconds since the epoch
    where: str  # the directory of the files
    files: tuple[tuple[str, str], ...]  # names and texts


def main_thread(text: str) -> Sequence[Frame]:
    """Return the frames of the main thread, which is written last."""
    blocks = _THREAD.split(text)[1:]
    return frames(blocks[-1]) if blocks else ()


def frames(block: str) -> Sequence[Frame]:
    return [Frame(file, int(line), name) for file, line, name in _FRAME.findall(block)]


def place(stack: Sequence[Frame]) -> str:
    """Return the innermost line of the user's own code, or else of any code, such as
    "loader.py:88, next_batch"; "" without frames.
    """
    own = next((f for f in stack if not _LIBRARIES.search(f.file)), None)
    innermost = own or next(iter(stack), None)
    if innermost is None:
        return ""
    name = innermost.file.rpartition("/")[2]
    return f"{name}:{innermost.line}, {innermost.function}"[-LONGEST:]


def collective(stack: Sequence[Frame]) -> str:
    """Return the collective that the stack is in, such as "all_reduce"; "" for none."""
    if any(f.file.endswith(_PIPELINES[0]) and f.function == _PIPELINES[1] for f in stack):
        return "batch_isend_irecv"
    inside = [f.function for f in stack if f.file.endswith(_COLLECTIVES)]
    return next((name for name in reversed(inside) if name not in _INNER), "")


def implied_collective(stack: Sequence[Frame]) -> str:
    """Return the operation in which a rank most likely waits for others, although no collective is
    in its stack: "backward" or "broadcast"; "" if there is none.
    """
    if not stack:
        return ""
    if stack[0].file.endswith(_BACKWARD[0]) and stack[0].function == _BACKWARD[1]:
        return "backward"
    return "broadcast" if stack[0].file.endswith(_SYNCHRONIZES) else ""


def waits_for_gpu(call: str) -> bool:
    """Return whether the main thread, which is in the function `call`, waits for a GPU. CPU time is
    no sign of life then: CUDA spins while it waits.
    """
    return call in _WAITS_FOR_GPUS


def is_debugged(stack: Sequence[Frame]) -> bool:
    return any(_DEBUGGERS.search(f.file) for f in stack)
