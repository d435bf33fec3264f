"""The GPU watcher: the process that reads NVML while the job runs.

NVML can hang when a GPU falls off the bus, and the agent must not hang with it: so this process
reads NVML. There is one per agent, without torch or a CUDA context. Its client is in
`gpu_watcher_client.py`; `system/shared/helper.py` starts it with AGENT (the agent's pid), PERIOD
and [[UUID, NAME], ...].

A check (`watcher_messages.py`) is answered once, with all that is wrong before the round begins.
News between checks is sent without a round. The process ends when the agent closes the socket or
ends, by its parent-death signal if a call of NVML never returns.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hpclaunch.core.health.findings import Finding, Grade
from hpclaunch.core.health.gpu_rules import (
    GpuReading,
    History,
    NvLink,
    Process,
    Recovery,
    Slowdown,
    XidSeen,
)
from hpclaunch.core.health.xids import xid
from hpclaunch.core.protocol.gpu_use import GpuUse
from hpclaunch.core.protocol.wording import plain
from hpclaunch.system.shared.prctl import die_with
from hpclaunch.worker.json_lines import AgentChannel, AgentGoneError
from hpclaunch.worker.messages import decode, never
from hpclaunch.worker.processes import ancestry, user_name

from .watcher_messages import REQUESTS, AskUse, Check, GpuReport, Request

MEMORY_LIMIT = 5.0  # seconds until the memory of dead workers has to be free
MEMORY_STEP = 0.05  # seconds between two looks; NVML has no event for that
EVENT_WAIT = 3_600_000  # milliseconds of one wait for events
NOBODY = 0xFFFFFFFF  # the GPU instance in an event that concerns the whole GPU


@dataclass(frozen=True, slots=True)
class Target:
    """One GPU to watch. `whole` is its own handle, or that of the GPU which MIG has divided."""

    uuid: str
    name: str
    handle: Any
    whole: Any
    model: str = ""
    instance: int | None = None  # of MIG: the GPU instance

    def is_meant(self, event: Any) -> bool:
        if _address(self.whole) != _address(event.device):
            return False
        return self.instance is None or event.gpuInstanceId in (NOBODY, self.instance)


class Lost(Exception):  # noqa: N818 - of a GPU, not of this program
    """The GPU does not answer."""


class Gpus:
    """The GPUs to be watched, with NVML open."""

    def __init__(self, wanted: list[tuple[str, str]], nvml: Any) -> None:
        """Open NVML. `wanted`: UUIDs and their names for the user. Raises NVMLError."""
        self.nvml = nvml
        nvml.nvmlInit()
        self.missing = {}
        self.targets = []
        for uuid, name in wanted:
            try:
                self.targets.append(self._target(uuid, name))
            except (nvml.NVMLError, Lost) as e:
                self.missing[name] = str(e)

    def _target(self, uuid: str, name: str) -> Target:
        nvml = self.nvml
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        model = str(self._ask(nvml.nvmlDeviceGetName, "", handle))
        if not uuid.startswith("MIG-"):
            return Target(uuid, name, handle, handle, model)
        whole = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
        return Target(uuid, name, handle, whole, model, nvml.nvmlDeviceGetGpuInstanceId(handle))

    def read(self, dead: Collection[int] | None) -> list[GpuReading]:
        """Read all GPUs. `dead` are the pids of workers that have ended; None while workers run."""
        readings = [GpuReading(name, lost=why) for name, why in self.missing.items()]
        found = [(target, self._read(target, dead)) for target in self.targets]
        for target, reading in found:
            most = max(r.links_up for t, r in found if t.model == target.model)
            readings.append(replace(reading, links_of_siblings=most))
        return readings

    def _read(self, target: Target, dead: Collection[int] | None) -> GpuReading:
        nvml, whole = self.nvml, target.whole
        kinds = (nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC)
        sensor = nvml.NVML_TEMPERATURE_GPU
        try:
            rows = self._ask(nvml.nvmlDeviceGetRemappedRows, (0, 0, 0, 0), whole)
            reasons = self._ask(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, 0, whole)
            pages = self._ask(nvml.nvmlDeviceGetRetiredPagesPendingStatus, 0, whole)
            reading = GpuReading(
                target.name,
                uncorrected=self._ask(nvml.nvmlDeviceGetTotalEccErrors, 0, whole, *kinds),
                pages_pending=bool(pages),
                rows_pending=bool(rows[2]),
                rows_failed=bool(rows[3]),
                recovery=self._recovery(whole),
                slow=tuple(r for r, bits in self._slowdowns().items() if reasons & bits),
                temperature=self._ask(nvml.nvmlDeviceGetTemperature, 0, whole, sensor),
                links=self._links(whole),
                idle=dead is not None,
            )
        except Lost as e:
            return GpuReading(target.name, lost=str(e))
        return self._read_memory(reading, target, dead or ())

    def use(self) -> list[GpuUse]:
        """Return how each GPU is used; [] if some are missing. Raises Lost."""
        return [] if self.missing else [self._use(target) for target in self.targets]

    def _use(self, target: Target) -> GpuUse:
        nvml, whole = self.nvml, target.whole
        # NVML has no rates for an instance of MIG.
        rates = None
        if target.instance is None:
            rates = self._ask(nvml.nvmlDeviceGetUtilizationRates, None, whole)
        memory = self._ask(nvml.nvmlDeviceGetMemoryInfo, None, target.handle)
        return GpuUse(
            busy=None if rates is None else rates.gpu / 100,
            used=0 if memory is None else memory.used,
            total=0 if memory is None else memory.total,
            temperature=self._ask(
                nvml.nvmlDeviceGetTemperature, 0, whole, nvml.NVML_TEMPERATURE_GPU
            ),
            power=self._ask(nvml.nvmlDeviceGetPowerUsage, 0, whole) / 1000,
        )

    def read_again(self, readings: list[GpuReading], dead: Collection[int]) -> list[GpuReading]:
        """Read again the processes and the memory, which change soon after a worker's end."""
        targets = {target.name: target for target in self.targets}
        return [r if r.lost else self._read_memory(r, targets[r.name], dead) for r in readings]

    def _read_memory(
        self, reading: GpuReading, target: Target, dead: Collection[int]
    ) -> GpuReading:
        nvml = self.nvml
        info = nvml.nvmlDeviceGetMemoryInfo
        try:
            older = self._ask(info, None, target.handle)  # counts the driver's own memory as used
            memory = self._ask(info, older, target.handle, nvml.nvmlMemory_v2)
            used = 0 if memory is None else memory.used
            return replace(reading, processes=self.processes(target, dead), used=used)
        except Lost as e:
            return GpuReading(target.name, lost=str(e))

    def processes(self, target: Target, dead: Collection[int] = ()) -> tuple[Process, ...]:
        nvml = self.nvml
        running: dict[int, Any] = {}
        for ask in (  # clients of MPS are in a list of their own
            nvml.nvmlDeviceGetComputeRunningProcesses,
            nvml.nvmlDeviceGetMPSComputeRunningProcesses,
        ):
            for p in self._ask(ask, [], target.handle):
                if p.pid not in running or p.usedGpuMemory is not None:
                    running[p.pid] = p
        return tuple(_process(p.pid, p.usedGpuMemory, dead) for p in running.values())

    def events(self) -> Any:
        """Return an event set that reports Xids from now on; None if the driver has no events."""
        nvml = self.nvml
        try:
            events = nvml.nvmlEventSetCreate()
        except nvml.NVMLError:
            return None
        for whole in {_address(t.whole): t.whole for t in self.targets}.values():
            with contextlib.suppress(nvml.NVMLError):
                nvml.nvmlDeviceRegisterEvents(whole, nvml.nvmlEventTypeXidCriticalError, events)
        return events

    def _ask(self, call: Any, otherwise: Any, *words: Any) -> Any:
        """Return the answer of NVML, or `otherwise` without one. Raises Lost for a lost GPU."""
        try:
            return call(*words)
        except self.nvml.NVMLError as e:
            self._check_lost(e)
            return otherwise

    def _check_lost(self, error: Any) -> None:
        lost = (self.nvml.NVML_ERROR_GPU_IS_LOST, self.nvml.NVML_ERROR_RESET_REQUIRED)
        if error.value in lost:
            raise Lost(str(error)) from error

    def _recovery(self, handle: Any) -> Recovery | None:
        field = getattr(self.nvml, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", None)
        if field is None:  # a pynvml before 565
            return None
        for answer in self._ask(self.nvml.nvmlDeviceGetFieldValues, (), handle, [field]):
            if answer.nvmlReturn == self.nvml.NVML_SUCCESS:
                return next((r for r in Recovery if r.value == answer.value.uiVal), None)
        return None

    def _slowdowns(self) -> dict[Slowdown, int]:
        nvml = self.nvml
        thermal = (
            nvml.nvmlClocksThrottleReasonSwThermalSlowdown
            | nvml.nvmlClocksThrottleReasonHwThermalSlowdown
        )
        brake = nvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown
        return {Slowdown.THERMAL: thermal, Slowdown.POWER_BRAKE: brake}

    def _links(self, handle: Any) -> tuple[NvLink, ...]:
        nvml = self.nvml
        links = []
        there = 0
        for number in range(nvml.NVML_NVLINK_MAX_LINKS):
            try:
                up = bool(nvml.nvmlDeviceGetNvLinkState(handle, number))
            except nvml.NVMLError as e:
                self._check_lost(e)
                up = None
                if e.value not in (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_INVALID_ARGUMENT):
                    there = number + 1
                elif not number:
                    break  # no NVLink
            else:
                there = number + 1
            kinds = (nvml.NVML_NVLINK_ERROR_DL_REPLAY, nvml.NVML_NVLINK_ERROR_DL_RECOVERY)
            counter = nvml.nvmlDeviceGetNvLinkErrorCounter
            errors = [self._ask(counter, None, handle, number, kind) for kind in kinds]
            links.append(NvLink(up, None if None in errors else sum(errors)))
        return tuple(links[:there])


def _process(pid: int, memory: int | None, dead: Collection[int]) -> Process:
    """Return a process on a GPU. Only its pid is known if it is in another pid namespace."""
    try:
        uid = os.stat(f"/proc/{pid}").st_uid
        with open(f"/proc/{pid}/comm", "rb") as f:
            command = plain(os.fsdecode(f.read()[:-1]))
    except OSError:
        return Process(pid, memory, dead=pid in dead)
    user = plain(user_name(uid))
    return Process(pid, memory, user, command, uid == os.getuid(), pid in dead)


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value


class GpuWatcher:
    """The GPU watcher: it answers requests, and reports news."""

    def __init__(
        self, channel: AgentChannel, wanted: list[tuple[str, str]], period: float, nvml: Any
    ) -> None:
        """`period` is the seconds between two looks while the workers run."""
        self.channel = channel
        self.period = period
        self.wanted = wanted
        self.nvml = nvml
        self.gpus: Gpus | None = None
        self.history = History()
        self.events, self._writing = os.pipe()
        self.seen: list[Any] = []  # events from the thread, with a byte in the pipe for each

    def run(self) -> None:
        """Serve requests and watch the GPUs. Raises AgentGoneError once the agent is gone."""
        self.open()
        due = time.monotonic() + self.period
        while True:
            wait = max(0.0, due - time.monotonic())
            sources: list[Any] = [self.channel, self.events]
            ready, _, _ = select.select(sources, [], [], wait)
            if self.events in ready:
                os.read(self.events, 1)
                self.on_event(self.seen.pop(0))
            if self.channel in ready:
                for request in self.channel.read():
                    self.serve(decode(REQUESTS, request))
            if time.monotonic() >= due:
                self.look()
                due = time.monotonic() + self.period

    def open(self) -> str:
        """Open NVML. Return why it cannot be read; "" if it can."""
        if self.gpus is not None:
            return ""
        try:
            self.gpus = Gpus(self.wanted, self.nvml)
        except self.nvml.NVMLError as e:
            return str(e)
        if (events := self.gpus.events()) is not None:
            threading.Thread(target=self.listen, args=(events,), daemon=True).start()
        return ""

    def serve(self, request: Request) -> None:
        match request:
            case Check(round=number, dead=dead):
                self.check(number, dead)
            case AskUse():
                self.report_use()
            case _:
                never(request)

    def check(self, round: int, dead: Collection[int]) -> None:  # noqa: A002 - the word for it
        if (why := self.open()) or self.gpus is None:
            advice = "run nvidia-smi on this host; --health off starts without this check"
            wrong = Finding("NVML", f"cannot be initialised: {why}", Grade.FAIL, advice)
            self.report([wrong], round)
            return
        limit = time.monotonic() + MEMORY_LIMIT
        readings = self.gpus.read(dead)
        while any(map(self.history.may_be_given_back, readings)) and time.monotonic() < limit:
            time.sleep(MEMORY_STEP)
            readings = self.gpus.read_again(readings, dead)
        self.report(self.history.answer(readings), round)

    def report_use(self) -> None:
        """Report how the GPUs are used, for people who look."""
        use: list[GpuUse] = []
        with contextlib.suppress(Lost):
            use = [] if self.gpus is None else self.gpus.use()
        self.send(GpuReport(use=tuple(use)))

    def look(self) -> None:
        """Look for news while the workers run."""
        if self.gpus is not None and (fresh := self.history.news(self.gpus.read(None))):
            self.report(fresh, None)

    def listen(self, events: Any) -> None:
        """Wait for events, in a thread of its own, since NVML's events have no descriptor."""
        nvml = self.nvml
        while True:
            event = None
            try:
                event = nvml.nvmlEventSetWait_v2(events, EVENT_WAIT)
            except nvml.NVMLError as e:
                if e.value == nvml.NVML_ERROR_TIMEOUT:
                    continue
            self.seen.append(event)
            os.write(self._writing, b"!")
            if event is None:  # most likely a GPU is lost: a look shows which
                time.sleep(self.period)

    def on_event(self, event: Any) -> None:
        if event is None or self.gpus is None:
            self.look()
            return
        findings: list[Finding] = []
        xids = []
        number = event.eventData
        for target in self.gpus.targets:
            if target.is_meant(event):
                findings += self.history.xid(target.name, number)
                xids.append(XidSeen(target.uuid, target.name, number, self._pids(target, number)))
        if xids:
            self.report(findings, None, xids)

    def _pids(self, target: Target, number: int) -> tuple[int, ...]:
        """Return our recent processes on this GPU and their ancestors, since only a child of a
        worker may use it. A broken GPU is not read: it may hang.
        """
        last = self.history.last.get(target.name)
        processes = last.processes if last is not None else ()
        if self.gpus is not None and not xid(number).fatal:
            with contextlib.suppress(Lost):
                processes += self.gpus.processes(target)
        users = (p.pid for p in processes if p.ours and not p.dead)
        return tuple(dict.fromkeys(pid for user in users for pid in ancestry(user)))

    def report(self, findings: list[Finding], of: int | None, xids: Sequence[XidSeen] = ()) -> None:
        self.send(GpuReport(tuple(findings), of, tuple(xids)))

    def send(self, reply: GpuReport) -> None:
        with contextlib.suppress(AgentGoneError):  # run() sees it too
            self.channel.send(reply.encoded())


def main(fd: str, _blocked: str, agent: str, period: str, wanted: str) -> None:
    """Run the watcher. Signals stay blocked: they are meant for the agent."""
    if not die_with(int(agent)):
        return
    import pynvml

    names = [(uuid, name) for uuid, name in json.loads(wanted)]
    with contextlib.suppress(AgentGoneError):
        GpuWatcher(AgentChannel(fd), names, float(period), pynvml).run()
    os._exit(0)  # the thread may be inside NVML
