"""When Slurm ends the job: how the agent that leads asks the process that finds out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import zmq

from ..core.protocol import events
from ..core.protocol.model import Job, JobState
from ..system.hosts import slurm
from ..system.hosts.job_end import JobEndClient


class EndWatch:
    """`ask` begins a question, and an event answers it."""

    def __init__(
        self,
        job: Job,
        environ: Mapping[str, str],
        poller: zmq.Poller,
        is_replaced: Callable[[JobEndClient], bool],
    ) -> None:
        self._is_replaced = is_replaced
        self._job = job.slurm_id
        in_step = slurm.in_step(environ)
        self._step = f"{job.slurm_id}.{environ['SLURM_STEP_ID']}" if in_step else ""
        has_spares = 0 < job.most < job.nodes
        self._nodes = environ.get("SLURM_STEP_NODELIST", "") if has_spares else ""
        self._end = environ.get("SLURM_JOB_END_TIME", "")
        self._restarts = environ.get("SLURM_RESTART_COUNT", "")
        self._poller = poller
        self._client: JobEndClient | None = None
        self._number = 0  # of the last question
        self.began: float | None = None  # when the job did, in seconds since 1970, once it is known

    def close(self) -> None:
        if self._client is not None:
            self._poller.unregister(self._client.fileno())
            self._client.abandon()
            self._client = None

    def ask(self, number: int) -> list[events.Event]:
        """Answered by EndFound, here or later, or not at all: the process may hang."""
        self._number = number
        if self._client is None:
            try:
                identity = (self._job, self._step, self._end, self._restarts, self._nodes)
                self._client = JobEndClient(*identity)
            except OSError:
                return [events.EndFound(None, number=number)]
            self._poller.register(self._client.fileno(), zmq.POLLIN)
        self._client.ask(number=number)
        return []

    def receive(self, ready: Mapping[Any, int]) -> list[events.Event]:
        client = self._client
        if client is None or client.fileno() not in ready:
            return []
        replies = client.receive()
        if client.lost:
            self.close()
            if self._is_replaced(client):
                return self.ask(self._number)
            return [events.EndFound(None, number=self._number)]
        self.began = next((r["began"] for r in reversed(replies) if r["began"]), self.began)
        return [self._found(reply["number"], reply["found"]) for reply in replies]

    def _found(self, number: int, found: dict[str, Any]) -> events.EndFound:
        converted = {"state": JobState(found["state"]), "draining": tuple(found["draining"])}
        return events.EndFound(**found | converted, number=number)
