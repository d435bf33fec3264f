"""The agents' messages as bytes: versioned, typed and limited in size, and never pickled."""

from __future__ import annotations

from typing import Literal

import msgspec

from hpclaunch.core.protocol.messages import Hint, Message, Order, PlaceGiven, Report

from ..shared import packing

VERSION = 22
MAX_BYTES = 1 << 20

Kind = Literal["report", "order", "hint", "place"]
_KINDS: dict[Kind, type[Message]] = {
    "report": Report,
    "order": Order,
    "hint": Hint,
    "place": PlaceGiven,
}
_NAMES: dict[type[Message], Kind] = {kind: name for name, kind in _KINDS.items()}


class WireError(Exception):
    """The bytes are no message that this version understands."""


class VersionError(WireError):
    """The message is of another version of hpclaunch."""


class _Envelope(msgspec.Struct):
    version: int
    kind: Kind
    body: msgspec.Raw


def encode(message: Message) -> bytes:
    body = msgspec.Raw(packing.pack(message))
    return msgspec.json.encode(_Envelope(VERSION, _NAMES[type(message)], body))


def hello() -> bytes:
    """Return a message that contains only our version, which every other version can read."""
    return msgspec.json.encode(_Envelope(VERSION, "order", msgspec.Raw(b"{}")))


def decode(data: bytes) -> Message:
    """Return the message. Raises VersionError if another version has sent it, and WireError if it
    is not a message.
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
        return packing.unpack(envelope.body, _KINDS[envelope.kind])
    except (msgspec.MsgspecError, ValueError, RecursionError) as e:
        raise WireError(f"not a message: {e}") from e
