"""The network of an agent: the addresses of the others, the keys, and the channels to them."""

from __future__ import annotations

from contextlib import suppress

from ..core.protocol import effects, events
from ..core.protocol.errors import UsageError
from ..core.protocol.model import HEAD, Allocation
from ..system.hosts import machines
from ..system.network import route, secret
from .adapter import Adapter, Performs
from .channels import Channels, Post
from .config import Config
from .context import Context


class Alone(Adapter):
    """The network of the only agent of a job."""

    port = 0
    claim = ""
    networks = ()

    def __init__(self, address: str) -> None:
        self.address = address

    def performs(self) -> Performs:
        return {
            effects.Send: lambda _: None,
            effects.Dial: lambda _: None,
            effects.Probe: lambda _: None,
            effects.TakePlace: self._take_place,
            effects.Diagnose: lambda effect: [events.Diagnosed("", effect.number)],
        }

    def _take_place(self, effect: effects.TakePlace) -> None:
        raise AssertionError("an agent that is alone has a place")

    def leave_notice(self, post: Post, incarnation: str) -> None:
        """Do nothing: there is no other agent to read a death notice."""


def join(context: Context) -> Channels | Alone:
    """Return the network of this agent. Raises UsageError if it cannot be set up."""
    config, where = context.config, context.config.allocation
    try:
        address = _own_address(config)
        if where.alone:
            return Alone(address)
        shared = secret.load_or_create(secret.secret_path(context.environ))
        addresses, spare = _addresses_of_head(where)
        networks = () if config.job.nodes == 1 else route.networks_of_node(address)
        return Channels(
            where,
            shared,
            addresses,
            context.record,
            context.errands,
            spare=spare,
            address=address,
            networks=networks,
        )
    except UsageError as e:
        raise UsageError(f"on {context.host}: {e}") from e
    except OSError as e:
        raise UsageError(f"{context.host} cannot reach the other hosts: {e}") from e


def _addresses_of_head(where: Allocation) -> tuple[list[str], list[str]]:
    """Return the addresses at which to look for the first head, and those to try later if it does
    not answer there. Both are empty for that head itself. Raises OSError if there is no address.
    """
    first, here = where.places[HEAD], where.places[where.index]
    host = "" if where.endpoint is None else where.endpoint[0]
    if here is first:
        return [], []
    if not where.is_step:
        return route.resolve_patiently(host, loopback=True), []
    if here.node == first.node:
        return [route.LOOPBACK], []
    chosen: list[str] = []
    if host:
        with suppress(OSError):
            chosen = route.resolve(host)
    try:
        named = route.resolve_patiently(first.host, 1 if chosen else route.ATTEMPTS)
    except OSError as e:
        if not chosen:
            raise OSError(f"{e}. --rdzv-endpoint ADDRESS:PORT sets that of the first node") from e
        return chosen, []
    # The user's address may belong to another host, which cannot be known here.
    return (chosen, [a for a in named if a not in chosen]) if chosen else (named, [])


def _own_address(config: Config) -> str:
    """Return the address at which the others reach this agent's node, or "" while it is unknown.

    In a step, the user's choice counts only on the node that has this address: in a job script,
    `$(hostname -i)` is the first node's address on every node.
    """
    if config.job.nodes == 1:
        return route.LOOPBACK
    is_step = config.allocation.is_step
    address = config.local_addr and machines.own_address(config.local_addr, loopback=not is_step)
    if config.local_addr and not (address or is_step):
        raise UsageError(f"--local-addr {config.local_addr} is no address of this host")
    return address
