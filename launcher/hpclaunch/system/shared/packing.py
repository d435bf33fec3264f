"""JSON for the journal and the wire, with any file name in it.

A file name is bytes. Python keeps those that cannot be decoded as lone surrogates, which UTF-8 does
not allow and msgspec neither writes nor reads. The standard library does both, but more slowly.
"""

from __future__ import annotations

import json
import threading
from typing import Any, TypeVar

import msgspec

from . import bounded_json

T = TypeVar("T")
_preparing = threading.Lock()
_decoders: dict[object, msgspec.json.Decoder[Any]] = {}


def to_json(value: object) -> bytes:
    """Return the JSON of a value, for readers with any library."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return _escaped(value).encode()


def pack(value: object) -> bytes:
    """Return JSON for `unpack`: msgspec's, or the standard library's in a string."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(_escaped(value))


def unpack(data: bytes | msgspec.Raw, kind: type[T]) -> T:
    """Return the value that was packed. Raises MsgspecError for anything else than this type."""
    decoder = _decoder(kind)
    try:
        if bytes(data)[:1] != b'"':
            return decoder.decode(data)
        value = bounded_json.loads(msgspec.json.decode(data, type=str))
        return msgspec.convert(value, type=kind, str_keys=True)
    except msgspec.MsgspecError:
        raise
    except (ValueError, RecursionError) as e:
        raise msgspec.DecodeError(str(e)) from e


def _decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    """Return the decoder of a type. One thread at a time makes decoders: while msgspec looks up the
    fields of a type, another thread that decodes this type would crash the process (SIGSEGV).
    """
    with _preparing:
        if kind not in _decoders:
            _decoders[kind] = msgspec.json.Decoder(kind)
        return _decoders[kind]


def _escaped(value: object) -> str:
    return json.dumps(msgspec.to_builtins(value, str_keys=True))
