"""Polling of adapters as the agent's loop does it, for tests of a single adapter."""

from __future__ import annotations

import time

import zmq

from hpclaunch.agent.adapter import Adapter
from hpclaunch.core.protocol.events import Event

LIMIT = 60.0  # seconds; far more than any answer takes


def receive(*adapters: Adapter, limit: float = LIMIT) -> list[Event]:
    """Wait for the first input at any of these adapters; return its events, or [] after `limit`."""
    polled = [(fd, zmq.POLLIN) for adapter in adapters for fd in adapter.fds()]
    fds = {fd for fd, _ in zmq.zmq_poll(polled, timeout=round(limit * 1000))}
    return [event for adapter in adapters for event in adapter.ready(fds, time.monotonic())]
