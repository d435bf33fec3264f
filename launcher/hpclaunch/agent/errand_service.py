"""The process that runs an agent's errands (`system/shared/errands.py`), each in its own thread, so
that one that hangs delays no other.

All modules are imported at the start: an import that hangs on a file system would block all threads
that import. Standard library only.
"""

from __future__ import annotations

import contextlib
import encodings.idna  # noqa: F401  for the lookup of names
import os
import threading
import time
import traceback
from collections.abc import Collection

from hpclaunch.system.gpus import foreign_mps
from hpclaunch.system.hosts import slurm_end
from hpclaunch.system.network import reachability, route
from hpclaunch.system.processes import commands
from hpclaunch.system.shared import errands
from hpclaunch.system.shared.prctl import die_with
from hpclaunch.worker.json_lines import AgentChannel, AgentGoneError
from hpclaunch.worker.messages import decode


class ErrandService:
    def __init__(self, channel: AgentChannel, mask: Collection[int]) -> None:
        """`mask` has the signals to block for the user's command."""
        self._channel, self._mask = channel, mask
        self._answering = threading.Lock()

    def serve(self) -> None:
        """Serve errands. Raises AgentGoneError once the agent is gone."""
        while True:
            for request in self._channel.read():
                errand = decode(errands.ERRANDS, request)
                thread = threading.Thread(target=self._answer, args=[errand], daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # the kernel refuses another thread
                    self._fail(errand)

    def _answer(self, errand: errands.Errand) -> None:
        try:
            answer = self._run(errand)
        except Exception:
            self._fail(errand)
        else:
            self._send(answer)

    def _fail(self, errand: errands.Errand) -> None:
        """Print the exception being handled, and answer that this errand has failed."""
        traceback.print_exc()
        self._send(errands.Failed(errand.number))

    def _send(self, answer: errands.Answer | errands.Failed) -> None:
        with self._answering, contextlib.suppress(AgentGoneError):  # serve() raises it
            self._channel.send(answer.encoded())

    def _run(self, errand: errands.Errand) -> errands.Answer:
        number = errand.number
        match errand:
            case errands.FindJobEnd():
                return slurm_end.find(errand)
            case errands.Resolve(host=host):
                addresses: list[str] = []
                try:
                    addresses = route.resolve_node(host)
                except OSError:
                    time.sleep(route.PAUSE)  # the agent looks it up again
                return errands.Resolved(number, tuple(addresses))
            case errands.Explain(host=host, addresses=tried, ports=ports):
                return errands.Explained(number, reachability.explain(host, tried, ports))
            case errands.ReadStacks(py_spy=py_spy, pids=pids, until=until):
                return errands.Stacks(number, commands.stacks(py_spy, pids, until))
            case errands.AskMps():
                return foreign_mps.ask(errand)
            case errands.Notify(command=command, event=event):
                return errands.Notified(number, commands.notify(command, event, self._mask))


def main(fd: str, blocked: str, agent: str) -> None:
    if not die_with(int(agent)):
        return
    mask = [int(number) for number in blocked.split(",") if number]
    with contextlib.suppress(AgentGoneError):
        ErrandService(AgentChannel(fd), mask).serve()
    os._exit(0)  # a thread may hang
