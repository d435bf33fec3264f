"""The target of metrics, chosen by the user: a port of this machine, a file, or a directory."""

from __future__ import annotations

import re
from dataclasses import dataclass

LOOPBACK = "127.0.0.1"
ADDRESS = r"(?:\[(?P<six>[^\]]*)\]|(?P<four>[^:/]*)):(?P<port>\d+)"
MOST = 65535


@dataclass(frozen=True, slots=True)
class MetricsTarget:
    """Exactly one of `port`, `file` and `directory` is set."""

    port: int = 0
    address: str = LOOPBACK  # at which the port listens
    file: str = ""
    directory: str = ""


def parse(text: str) -> MetricsTarget:
    """Return the target that a text means. Raises ValueError, which says what is wrong."""
    if text.isascii() and text.isdecimal():
        return MetricsTarget(port=_port(text))
    if found := re.fullmatch(ADDRESS, text, re.ASCII):
        import ipaddress  # slow to import, and needed only here

        address = found["four"] if found["six"] is None else found["six"]
        try:
            ipaddress.ip_address(address)
        except ValueError:
            raise ValueError(f"{address!r} is no IP address") from None
        return MetricsTarget(port=_port(found["port"]), address=address)
    if text.endswith(".prom"):
        return MetricsTarget(file=text)
    if "/" in text or text == ".":
        return MetricsTarget(directory=text)
    raise ValueError(
        f"{text!r} is neither PORT, ADDRESS:PORT, a file that ends in .prom, nor a directory with "
        "a / in it"
    )


def _port(text: str) -> int:
    if not 0 < int(text) <= MOST:
        raise ValueError(f"a port is a number from 1 to {MOST}, not {text}")
    return int(text)
