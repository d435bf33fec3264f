"""The workers of `hpclaunch doctor --measure`: the ranks measure themselves and each other.

    python .../worker/measurement.py RESULT

runs on every rank in a worker's environment. It is started by its path, so that the working
directory is not in `sys.path`; its own directory is removed from there at once. `hpclaunch` is the
package that this file is in. All ranks multiply matrices at the same time, as in training, and
those on GPUs copy memory. Then pairs of ranks exchange data, in rounds;
`core/health/measurement_rules.py` plans the pairs and judges the results. The ranks leave JSON in
the round's store. Rank 0 writes the rows of the doctor's table to the file RESULT, as JSON.

The exit code is 0 whatever was measured; 1 if a rank no longer answers, which the last line of
standard error names.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import sys
import time
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import timedelta
from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != _HERE]
# Not through sys.path: the workers' site-packages may have another hpclaunch, or none.
_package = types.ModuleType("hpclaunch")
_package.__path__ = [os.path.dirname(_HERE)]
sys.modules["hpclaunch"] = _package

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # no warnings about names of hosts
try:
    import torch
except ImportError as e:
    sys.exit(f"the workers' Python has no torch: {e}")
import torch.distributed as dist  # noqa: E402
from torch.distributed import PrefixStore, rendezvous  # type: ignore[attr-defined]  # noqa: E402

from hpclaunch.core.health.measurement_rules import (  # noqa: E402
    Fault,
    FaultKind,
    Link,
    RankMeasurement,
    Speed,
    report,
    schedule,
)
from hpclaunch.worker.messages import made  # noqa: E402

START_LIMIT = 600.0  # seconds until all ranks have imported torch, which a file system may delay
LIMIT = 90.0  # seconds for what a rank does on its own, and for what the pairs do
KERNEL_LIMIT = 30.0  # seconds in which a GPU must be done with what takes milliseconds
LINK_LIMIT = 20.0  # seconds in which a pair must be done with what takes milliseconds
SPAN = 0.3  # seconds of each measurement, long compared to a time slice of the scheduler
WINDOWS = 5  # timed repetitions of each measurement, at least
MANY = 200  # repetitions at most
NO_ANSWER = "no longer answers: it hangs, or its node does"
SILENT = Fault(FaultKind.SILENT, NO_ANSWER)
BLOCK = 64  # rows after which the exact matrices repeat


class Device:
    """The device on which this rank computes, and how much at a time: some milliseconds' worth."""

    def __init__(self) -> None:
        self.gpu = torch.cuda.is_available()
        if self.gpu:
            index = int(os.environ["LOCAL_RANK"])
            torch.cuda.set_device(index)
            self.place = torch.device("cuda", index)
            fast = torch.cuda.get_device_capability(index) >= (8, 0)
            self.type = torch.bfloat16 if fast else torch.float16
            self.size, self.times, self.bytes = 4096, 8, 256 << 20
            self.name = f"{torch.cuda.get_device_name(index)}, {str(self.type)[6:]}"
            uuid = getattr(torch.cuda.get_device_properties(index), "uuid", "")
            self.label = f"GPU {index}, {uuid}" if uuid else f"GPU {index}"
        else:
            self.place, self.type = torch.device("cpu"), torch.float32
            self.size, self.times = 512, 1
            self.name = f"{cpu_model()}, {torch.get_num_threads()} of its threads, float32"
            self.label = ""

    def finish(self, limit: float = KERNEL_LIMIT) -> None:
        """Wait until the GPU has finished. Raises RuntimeError after `limit` seconds."""
        if not self.gpu:
            return
        event = torch.cuda.Event()
        event.record()
        end = time.monotonic() + limit
        while not event.query():
            if time.monotonic() > end:
                raise RuntimeError(f"the GPU is not done after {limit:.0f} s")

    def speed(self, run: Callable[[], object], amount: float) -> Speed:
        """Return the speed of `run` in work per second; each call does `amount`."""
        windows: list[float] = []
        run()  # loads kernels
        self.finish()
        end = time.monotonic() + SPAN
        while len(windows) < WINDOWS or (time.monotonic() < end and len(windows) < MANY):
            start = time.perf_counter()
            run()
            self.finish()
            windows.append(time.perf_counter() - start)
        return speed_of(amount, windows)

    def compute(self) -> Speed:
        """Return TFLOP/s with random numbers, as in training: zeros need less power and time."""
        a, b = (torch.randn(self.size, self.size, device=self.place).to(self.type) for _ in "ab")
        c = torch.empty_like(a)

        def multiply() -> None:
            for _ in range(self.times):
                torch.mm(a, b, out=c)

        return self.speed(multiply, 2 * self.size**3 * self.times / 1e12)

    def is_exact(self) -> bool:
        """Return whether products are right: small whole numbers are exact in bfloat16 too."""
        terms = self.size // BLOCK
        rows, columns = torch.arange(self.size)[:, None], torch.arange(self.size)[None, :]
        a = (rows % BLOCK == columns % BLOCK).to(self.place, self.type)
        b = ((rows // BLOCK + columns) % 2 + (rows % BLOCK + columns) % 3).to(self.place, self.type)
        expected = terms // 2 + terms * ((rows % BLOCK + columns) % 3)
        results = [torch.mm(a, b) for _ in range(3)]
        self.finish()
        return all(torch.equal(result.cpu().to(expected.dtype), expected) for result in results)

    def memory(self) -> Speed:
        """Return GB/s; each byte is read and written."""
        source = torch.ones(self.bytes, dtype=torch.uint8, device=self.place)
        target = torch.empty_like(source)
        return self.speed(lambda: target.copy_(source), 2 * self.bytes / 1e9)


def speed_of(amount: float, windows: Sequence[float]) -> Speed:
    """Return the best and the median speed of windows that did `amount` each."""
    return Speed(amount / min(windows), amount / sorted(windows)[len(windows) // 2])


def cpu_model() -> str:
    with contextlib.suppress(OSError), open("/proc/cpuinfo", errors="replace") as f:
        for line in f:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


class StoreChannel:
    """Messages between the ranks: JSON in the round's store."""

    def __init__(self) -> None:
        store, self.rank, self.world = next(rendezvous("env://"))
        self.store = PrefixStore("measurement", store)
        self.end = time.monotonic() + START_LIMIT

    def left(self) -> float:
        return max(self.end - time.monotonic(), 0.1)

    def post(self, key: str, value: object) -> None:
        self.store.set(key, json.dumps(value))

    def read(self, key: str, limit: float) -> Any:
        """Return the value, or None if nobody has posted it in time."""
        try:
            self.store.wait([key], timedelta(seconds=limit))
        except RuntimeError:
            return None
        return json.loads(self.store.get(key))

    def read_of_first(self, key: str, limit: float) -> Any:
        """Return what rank 0 posts, perhaps only after it has waited for others."""
        value = self.read(key, limit + LIMIT)
        if value is None:
            raise SystemExit(f"rank 0, at {os.environ['MASTER_ADDR']}, {NO_ANSWER}")
        return value

    def read_of_all(self, what: str, ranks: Iterable[int]) -> dict[int, Any]:
        """Return {rank: what it has posted, None if nothing in time}."""
        return {rank: self.read(f"{what}/{rank}", self.left()) for rank in ranks}


def identity() -> dict[str, Any]:
    host = platform.node().partition(".")[0]
    sharers = int(os.environ.get("HPCLAUNCH_RANKS_PER_GPU", "1"))
    node = int(os.environ.get("GROUP_RANK", "0"))
    return {"rank": int(os.environ["RANK"]), "node": node, "host": host, "sharers": sharers}


def measure(facts: dict[str, Any]) -> tuple[Device | None, RankMeasurement]:
    """Measure this rank on its own: (device, None if there is none; measurement)."""
    device = None
    try:
        device = Device()
        facts = {**facts, "device": device.name, "gpu": device.label}
        wall, cpu = time.monotonic(), time.process_time()
        facts["compute"] = device.compute()
        if device.gpu:
            facts["memory"] = device.memory()
        else:
            could = (time.monotonic() - wall) * torch.get_num_threads()
            facts["cpu"] = min((time.process_time() - cpu) / could, 1.0)
        if not device.is_exact():
            facts["fault"] = Fault(FaultKind.WRONG, "a product of matrices is wrong")
    except (RuntimeError, AssertionError) as e:
        facts["fault"] = Fault(FaultKind.FAILED, f"cannot compute: {first_line(e)}")
    return device, RankMeasurement(**facts)


def first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]


def exchange(
    channel: StoreChannel, device: Device | None, backend: str, partners: Iterable[int]
) -> list[Link]:
    """Exchange data with each partner. Return the links of the pairs in which this rank is first.

    If a failure keeps this rank from further exchanges, skip them, and inform the partners.
    """
    links: list[Link] = []
    is_able = True
    for partner in partners:
        first, second = sorted((channel.rank, partner))
        key = f"pair/{first}-{second}"
        channel.post(f"{key}/{channel.rank}", is_able)
        if not is_able:
            continue
        # A partner may be late for reasons other than this link.
        partner_is_able = channel.read(f"{key}/{partner}", channel.left())
        if not partner_is_able:
            is_able = partner_is_able is not None  # None: no answer, and the time is used up
            continue
        speed = fault = None
        assert device is not None, "a rank without one has no partners"
        try:
            store = PrefixStore(key, channel.store)
            speed = all_reduce(store, device, backend, is_second=channel.rank == second)
        except WrongSumError as e:
            fault = Fault(FaultKind.WRONG, str(e))
        except RuntimeError as e:
            fault = Fault(FaultKind.FAILED, f"failed: {first_line(e)}")
        if channel.rank == first:
            links.append(Link((first, second), speed, fault))
        if fault and backend == "nccl":
            is_able = False  # the collective that failed may occupy the GPU for ever
            continue
        if dist.is_initialized():
            dist.destroy_process_group()
    return links


class WrongSumError(Exception):
    """An all-reduce returned a wrong sum."""


def all_reduce(store: PrefixStore, device: Device, backend: str, *, is_second: bool) -> Speed:
    hook, limit = sys.excepthook, timedelta(seconds=LINK_LIMIT)
    place, size = (device.place, 64 << 20) if backend == "nccl" else (torch.device("cpu"), 4 << 20)
    dist.init_process_group(backend, store=store, rank=int(is_second), world_size=2, timeout=limit)
    sys.excepthook = hook  # torch's hook shows the rank within the pair, not in the job
    tensor = torch.full((size // 4,), 1.0 + is_second, device=place)

    def timed() -> float:
        start = time.perf_counter()
        dist.all_reduce(tensor)
        device.finish(LINK_LIMIT)
        return time.perf_counter() - start

    timed()  # connects
    is_wrong = not bool((tensor == 3).all())
    # Both ranks have to agree on whether the sum was right, and on the number of times.
    agreed = torch.tensor([timed(), is_wrong], dtype=torch.float32, device=place)
    dist.all_reduce(agreed, dist.ReduceOp.MAX)
    longest, wrong = agreed.tolist()
    if is_wrong or wrong:
        raise WrongSumError("a wrong sum: data was corrupted")
    times = max(2, min(WINDOWS, int(SPAN / 2 / longest)))
    return speed_of(size / 1e9, [timed() for _ in range(times)])


def plan_of(measured: Iterable[RankMeasurement]) -> dict[str, Any]:
    """Return rank 0's plan for all: the backend, and the partners of each rank in order."""
    fit = [m for m in measured if m.fault is None]
    own = all(m.gpu and m.sharers == 1 for m in fit) and dist.is_nccl_available()
    partners: dict[int, list[int]] = {m.rank: [] for m in fit}
    for pairs in schedule([m.node for m in fit], within=own):
        for a, b in pairs:
            first, second = fit[a].rank, fit[b].rank
            partners[first].append(second)
            partners[second].append(first)
    return {"backend": "nccl" if own else "gloo", "partners": partners}


def conclude(
    plan: Mapping[str, Any], measured: list[RankMeasurement], links: list[Link], path: str
) -> None:
    """Write the rows of the doctor's table to the file `path`."""
    planned = sum(map(len, plan["partners"].values())) // 2
    rows = report(measured, links, plan["backend"], planned)
    draft = f"{path}.tmp"
    with open(draft, "w") as f:
        json.dump([asdict(row) for row in rows], f)
    os.replace(draft, path)


def main() -> None:
    channel, facts = StoreChannel(), identity()
    is_first = channel.rank == 0
    channel.post(f"here/{channel.rank}", facts)
    if is_first:
        unknown = {"node": -1, "host": "a host that is not known"}
        here = channel.read_of_all("here", range(channel.world))
        channel.post("go", True)
    channel.read_of_first("go", START_LIMIT)
    channel.end = time.monotonic() + LIMIT
    device, mine = measure(facts)
    channel.post(f"measured/{channel.rank}", asdict(mine))
    if is_first:
        measured = [
            RankMeasurement(**(here[rank] or {"rank": rank, **unknown}), fault=SILENT)
            if posted is None
            else made(RankMeasurement, posted)
            for rank, posted in channel.read_of_all("measured", here).items()
        ]
        channel.post("plan", plan_of(measured))
    plan = channel.read_of_first("plan", LIMIT)
    channel.end = time.monotonic() + LIMIT
    partners = plan["partners"].get(str(channel.rank), [])
    links = exchange(channel, device, plan["backend"], partners)
    channel.post(f"links/{channel.rank}", [asdict(link) for link in links])
    if not is_first:
        # If rank 0 hangs, this time-out ends the round.
        channel.read_of_first("done", LIMIT)
        return
    channel.end = max(channel.end, time.monotonic() + LINK_LIMIT)  # for the others' last pair
    posted = channel.read_of_all("links", map(int, plan["partners"]))
    links = [made(Link, link) for its in posted.values() for link in its or ()]
    measured = [
        m if posted.get(m.rank, ()) is not None else replace(m, fault=SILENT) for m in measured
    ]
    conclude(plan, measured, links, sys.argv[1])
    channel.post("done", True)
    if silent := [m.name for m in measured if m.fault and m.fault.kind is FaultKind.SILENT]:
        # This ends the round, which would wait for them otherwise.
        raise SystemExit(f"{', '.join(silent)} {NO_ANSWER}")


if __name__ == "__main__":
    # Otherwise torch ends the process when a link hangs, and no row names that link.
    os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"
    code = 0
    try:
        main()
    except SystemExit as e:
        code = 1
        sys.stderr.write(f"{e}\n")
        sys.stderr.flush()
    os._exit(code)  # what hangs on a GPU would keep the interpreter from ending
