"""Messages as bytes: versioned, typed and limited in size. Never pickle."""

from __future__ import annotations

import json
from typing import Literal

import msgspec

from hpclaunch.core.messages import Hint, Message, Order, Report

VERSION = 6
MAX_BYTES = 1 << 20

Kind = Literal["report", "order", "hint"]
_KINDS: dict[Kind, type[Message]] = {"report": Report, "order": Order, "hint": Hint}
_NAMES: dict[type[Message], Kind] = {kind: name for name, kind in _KINDS.items()}


class WireError(Exception):
    """What arrived is not a message that this version understands."""


class VersionError(WireError):
    """It comes from another version of hpclaunch."""


class _Envelope(msgspec.Struct):
    version: int
    kind: Kind
    body: msgspec.Raw


def encode(message: Message) -> bytes:
    try:
        body = msgspec.json.encode(message)
    except UnicodeEncodeError:  # in words for the user: the name of a file, which is no UTF-8
        text = json.dumps(msgspec.to_builtins(message), ensure_ascii=False)
        body = text.encode(errors="replace")
    return msgspec.json.encode(_Envelope(VERSION, _NAMES[type(message)], msgspec.Raw(body)))


def hello() -> bytes:
    """Says nothing but our version, which every other version can read."""
    return msgspec.json.encode(_Envelope(VERSION, "order", msgspec.Raw(b"{}")))


def decode(data: bytes) -> Message:
    """Raises WireError for anything that `encode` of this version could not have written.

    VersionError where only the version differs.
    """
    if len(data) > MAX_BYTES:
        raise WireError(f"a message of {len(data)} bytes, over the limit of {MAX_BYTES}")
    try:
        envelope = msgspec.json.decode(data, type=_Envelope)
        if envelope.version != VERSION:
            raise VersionError(
                f"one speaks version {envelope.version} of the protocol, the other {VERSION}: "
                "install the same hpclaunch on all nodes"
            )
        return msgspec.json.decode(envelope.body, type=_KINDS[envelope.kind])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as e:
        raise WireError(f"not a message: {e}") from e
