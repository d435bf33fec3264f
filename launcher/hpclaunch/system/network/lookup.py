"""A process that looks up names and tries connections for an agent, since either may take long.

    from the agent                                       to the agent
    {"op": "resolve", "agent": N, "host": NAME}          {"event": "resolved", "agent": N,
                                                             "addresses": [...]}
    {"op": "explain", "host", "addresses", "ports",      {"event": "explained", "text": T,
        "number": N}                                         "number": N}

It is started in need only: agents tell one another their addresses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hpclaunch.system.shared.helper import Helper
from hpclaunch.worker.json_lines import AgentChannel, AgentGoneError

from . import reachability, route


class LookupClient(Helper):
    does = "looks up names"

    def __init__(self) -> None:
        super().__init__("hpclaunch.system.network.lookup")

    def resolve(self, agent: int, host: str) -> None:
        self.ask(op="resolve", agent=agent, host=host)

    def explain(self, host: str, addresses: list[str], ports: list[int], number: int) -> None:
        """Why the head on `host` is not heard."""
        self.ask(op="explain", host=host, addresses=addresses, ports=ports, number=number)

    def close(self) -> None:
        self.abandon()


def _resolve(agent: int, host: str) -> dict[str, Any]:
    try:
        addresses = route.resolve_node(host)
    except OSError:
        addresses = []
    return {"event": "resolved", "agent": agent, "addresses": addresses}


def _explain(host: str, addresses: list[str], ports: list[int], number: int) -> dict[str, Any]:
    text = reachability.explain(host, addresses, ports)
    return {"event": "explained", "text": text, "number": number}


def main(fd: str, _blocked: str) -> None:
    channel = AgentChannel(fd)
    asked: dict[str, Callable[..., dict[str, Any]]]
    asked = {"resolve": _resolve, "explain": _explain}
    try:
        while True:
            for request in channel.read():
                channel.send(asked[request.pop("op")](**request))
    except AgentGoneError:
        pass
