"""How an agent finds the others: addresses, keys and its end of the channel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .config import Config
from .core.errors import UsageError
from .core.model import HEAD
from .system import machines, net, route, secret, wire


@dataclass(slots=True)
class Joined:
    """An agent's end of the channel, None when it is alone, and its address for the others."""

    channel: net.HeadChannel | net.MemberChannel | None
    address: str
    head: str = ""  # its host
    head_addresses: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()
    fingerprint: str = ""  # of the secret

    def diagnosis(self) -> str:
        """Why others may not be heard, as far as this end can tell."""
        channel = self.channel
        if channel is None:
            return ""
        if isinstance(channel, net.HeadChannel):
            if not channel.refused:
                return ""
            return (
                f"{channel.refused} connections were refused, since they did not know this job's "
                f"secret: is the secret file (here {self.fingerprint}) the same on all hosts?"
            )
        if channel.reached:
            return (
                f"hpclaunch on {self.head} is there, but has no place for this agent: does the "
                "job have more agents than it says (--nnodes)?"
            )
        if channel.refused:
            return (
                f"what answers on {self.head} does not know our secret (here {self.fingerprint}): "
                f"copy the same secret file to all hosts, or set {secret.VARIABLE}"
            )
        from .system import reach  # only in need

        return reach.explain(self.head, self.head_addresses, self.ports)


def join(config: Config, environ: Mapping[str, str]) -> Joined:
    """UsageError when the secret, the names or the ports do not allow it."""
    where = config.allocation
    here = config.job.places[where.index]
    try:
        head_addresses = _addresses_of_head(config)
        address = _own_address(config, head_addresses)
        if where.alone:
            return Joined(None, address)
        shared = secret.load_or_create(secret.secret_path(environ))
        port = 0 if where.endpoint is None else where.endpoint[1]
        keys = net.derive(shared, where.identity, port)
        channel: net.HeadChannel | net.MemberChannel
        if where.index == HEAD:
            channel = net.HeadChannel(keys, len(where.places), wire.MAX_BYTES)
        else:
            index = where.index if where.seated else None
            channel = net.MemberChannel(keys, index, head_addresses, wire.MAX_BYTES)
    except UsageError as e:
        raise UsageError(f"on {here.host}: {e}") from e
    except OSError as e:
        raise UsageError(f"{here.host} cannot reach the other hosts: {e}") from e
    return Joined(
        channel,
        address,
        head=config.job.places[HEAD].host,
        head_addresses=tuple(head_addresses),
        ports=keys.ports,
        fingerprint=secret.fingerprint(shared),
    )


def _addresses_of_head(config: Config) -> list[str]:
    """Where this agent looks for the head; [] for the head itself."""
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

    The user's own choice counts where it is one: in a job script, `$(hostname -i)` is the first
    node's address on all of them.
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
