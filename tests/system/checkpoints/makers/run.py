"""Saves and loads with the real library, in as many ranks as are wanted, in processes that may be
killed. The library is imported once, and the ranks are forked from here.

    python run.py MAKER

Requests come on standard input, replies go to standard output: JSON, a line each. `Maker` in
__init__.py is the other end. A request may name another maker, if both libraries go together.

A maker is a module here with `setup()`, which imports the library, and a class `Saver(rank, world,
root, **options)` with `save(step)`, after which everything saved says `step`, and `load(path)`,
which returns the step that all of it says, or raises.
"""

from __future__ import annotations

import functools
import gc
import importlib
import json
import os
import signal
import socket
import sys
import tempfile
import time
import traceback
from pathlib import Path

LAST = 0.2  # seconds that the other ranks continue after one was killed
TICK = 0.005  # seconds: by a file system's clock, no two saves are of one moment


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def environment(rank: int, world: int, port: int) -> dict[str, str]:
    return {
        "RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo", "TP_SOCKET_IFNAME": "lo",
    }  # fmt: skip


class Ranks:
    """Forked processes, one for each rank; each reports on a pipe of its own."""

    def __init__(self, maker, world: int, root: str, options: dict, work, quiet=False) -> None:
        """Fork the ranks. `quiet` hides the library's messages about ranks that die."""
        port = free_port()
        self.pids, self.pipes = [], []
        for rank in range(world):
            reading, writing = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.close(reading)
                os.environ.update(environment(rank, world, port))
                code = 1
                try:
                    os.setpgid(0, 0)
                    if quiet:
                        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
                    sys.stdout = sys.stderr
                    with os.fdopen(writing, "w", buffering=1) as replies:
                        saver = maker.Saver(rank, world, Path(root), **options)
                        work(saver, lambda **fields: print(json.dumps(fields), file=replies))
                    code = 0
                except BaseException:
                    traceback.print_exc()
                os._exit(code)
            os.close(writing)
            self.pids.append(pid)
            self.pipes.append(os.fdopen(reading))

    def lines(self, rank: int) -> list[dict]:
        """Return all reports of a rank, which has then ended."""
        return [json.loads(line) for line in self.pipes[rank]]

    def kill(self, ranks) -> None:
        for rank in ranks:
            os.kill(self.pids[rank], signal.SIGKILL)

    def end(self) -> list[int]:
        return [os.waitpid(pid, 0)[1] for pid in self.pids]


def save(maker, root: str, world: int, steps: list[int], options: dict) -> dict:
    def work(saver, report) -> None:
        for step in steps:
            saver.save(step)

    ranks = Ranks(maker, world, root, options, work)
    return {"ok": not any(ranks.end())}


def load(maker, root: str, world: int, path: str, options: dict) -> dict:
    def work(saver, report) -> None:
        report(step=saver.load(path))

    ranks = Ranks(maker, world, root, options, work)
    loaded = [line["step"] for rank in range(world) for line in ranks.lines(rank)]
    return {"ok": not any(ranks.end()), "steps": loaded}


def kill(
    maker, root: str, world: int, after: float, victims: list[int], apart: float, options: dict
) -> dict:
    """Save one step after another; kill some ranks `after` seconds after the first save began.

    `apart` is the seeming time between two saves, in seconds.
    """

    def work(saver, report) -> None:
        if hasattr(saver, "prepare"):
            saver.prepare()
        report(ready=True)
        step = 0
        while True:
            step += 1
            saver.save(step)
            report(saved=step)
            time.sleep(TICK)
            if apart:
                meet(world)
                if int(os.environ["RANK"]) == 0:
                    age(Path(root), apart)
                meet(world)

    begun = time.time_ns()
    ranks = Ranks(maker, world, root, options, work, quiet=True)
    for pipe in ranks.pipes:
        if not pipe.readline():
            ranks.kill(range(world))
            ranks.end()
            return {"ok": False}
    time.sleep(after)
    ended = time.time_ns()
    ranks.kill(victims)
    time.sleep(LAST if len(victims) < world else 0)
    ranks.kill(range(world))
    ranks.end()
    saved = [max((s["saved"] for s in ranks.lines(rank)), default=0) for rank in range(world)]
    return {"ok": True, "saved": saved, "begun": begun, "ended": ended}


def meet(world: int) -> None:
    if world > 1:
        import torch.distributed

        torch.distributed.barrier()


def age(root: Path, seconds: float) -> None:
    """Make all files older, the first first: at every moment it could have been saved so."""
    files = sorted((p for p in root.rglob("*") if p.is_file()), key=lambda p: p.stat().st_mtime_ns)
    for path in files:
        info = path.stat()
        os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns - int(seconds * 10**9)))


@functools.cache
def maker_of(name: str):
    maker = importlib.import_module(name)
    maker.setup()
    return maker


def main() -> None:
    sys.path.insert(0, str(Path(__file__).parent))
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what the libraries print is no reply
    gc.disable()  # what is imported stays, and collections cost a tenth of the time
    maker_of(sys.argv[1])
    import torch

    torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))])  # which imports much
    gc.enable()
    print(json.dumps({"ready": True}), file=replies)
    for line in sys.stdin:
        request = json.loads(line)
        do = {"save": save, "load": load, "kill": kill}[request.pop("do")]
        maker = maker_of(request.pop("maker"))
        with tempfile.TemporaryDirectory() as scratch:
            os.chdir(scratch)
            print(json.dumps(do(maker, **request)), file=replies)
            os.chdir("/")


if __name__ == "__main__":
    main()
