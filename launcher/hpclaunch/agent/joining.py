"""How an agent finds the others: their addresses, the keys, and its channels to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..core.protocol import events
from ..core.protocol.errors import UsageError
from ..core.protocol.model import HEAD
from ..system.hosts import machines
from ..system.network import route, secret
from .channels import Channels
from .config import Config


@dataclass(slots=True)
class Joined:
    """An agent's channels (None when it is alone), and the address at which others reach it."""

    channels: Channels | None
    address: str
    head: str = ""  # the host of the first one
    head_addresses: tuple[str, ...] = ()
    fingerprint: str = ""  # of the secret
    networks: tuple[str, ...] = ()  # from which this node connects to others

    def diagnose(self) -> list[events.Event]:
        """Why nothing is heard of the others, as far as this end can tell: answered by Diagnosed,
        here or later.
        """
        channels = self.channels
        if channels is None:
            return [events.Diagnosed("")]
        known = channels.diagnosis(self.fingerprint)
        if known or not self.head_addresses:
            return [events.Diagnosed(known)]
        channels.explain(self.head, self.head_addresses)
        return []


def join(config: Config, environ: Mapping[str, str], say: Callable[[str], None]) -> Joined:
    """UsageError when the secret, the names or the ports do not allow it."""
    where = config.allocation
    here = config.job.places[where.index]
    try:
        head_addresses = _addresses_of_head(config)
        address = _own_address(config, head_addresses)
        if where.alone:
            return Joined(None, address)
        shared = secret.load_or_create(secret.secret_path(environ))
        networks = () if config.job.nodes == 1 else route.networks_of_node(address)
        channels = Channels(where, shared, head_addresses, say)
    except UsageError as e:
        raise UsageError(f"on {here.host}: {e}") from e
    except OSError as e:
        raise UsageError(f"{here.host} cannot reach the other hosts: {e}") from e
    return Joined(
        channels,
        address,
        head=config.job.places[HEAD].host,
        head_addresses=tuple(head_addresses),
        fingerprint=secret.fingerprint(shared),
        networks=networks,
    )


def _addresses_of_head(config: Config) -> list[str]:
    """Where this agent looks for the first head; [] for that head itself."""
    where = config.allocation
    if where.index == HEAD:
        return []
    if where.endpoint is not None:
        return route.resolve_any([where.endpoint[0]], loopback=True)
    if where.places[where.index].node == where.places[HEAD].node:
        return [route.LOOPBACK]
    return route.resolve_any([where.places[HEAD].host])


def _own_address(config: Config, head_addresses: list[str]) -> str:
    """How the others reach this agent's node: the source address of the route to them.

    The user's choice counts where it is an address of this node. In a job script `$(hostname -i)`
    is the first node's address on every node.
    """
    where = config.allocation
    if config.job.nodes == 1:
        return route.LOOPBACK
    if config.local_addr and machines.is_local(config.local_addr):
        return route.resolve_any([config.local_addr], loopback=True)[0]
    if config.local_addr and where.endpoint is not None:
        raise UsageError(f"--local-addr {config.local_addr} is no address of this host")
    if where.endpoint is not None:
        target = head_addresses or route.resolve_any([where.endpoint[0]], loopback=True)
    elif where.places[where.index].node == where.places[HEAD].node:
        others = [p.host for p in where.places if p.node != where.places[HEAD].node]
        target = route.resolve_any(others)
    else:
        target = head_addresses
    return route.source_address(target[0])
