"""Pieces of files on their way from one stager to another, encrypted with AES-GCM.

Orders go over CURVE (`mesh.py`), which would take four times as much CPU time for files, while the
workers need it. Each stager makes a key when it starts, and gives it to others over CURVE, with a
token for each connection. The token is sent in clear text, and admits one connection: whoever has
recorded it, and questions, cannot have them answered again. An answer is accepted only for the
question to which it was given.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from hpclaunch.core.protocol.values import value
from hpclaunch.core.staging.files import Identity
from hpclaunch.system.shared import packing

from .copying import GivenUpError, cause
from .fetching import Data
from .node import StageNode

LIMIT = 16 << 10  # bytes of a question
KEY = 32  # bytes
USER = b"stager"
NONCE = 12  # bytes; random ones suffice for 2**32 messages
BYTES, FAILURE = b"bytes", b"failure"  # of answers


@value(frozen=True)
class Read:
    """Return bytes of a file. Unlike an order, it may come from any node."""

    name: str
    kept: str
    identity: Identity
    offset: int
    length: int


@value(frozen=True)
class Failure:
    """Why a request has failed."""

    why: str
    number: int | None  # errno; None if it was given up
    name: str = ""  # of a file

    def raised(self) -> OSError | GivenUpError:
        """Return what the one who has asked raises."""
        if self.number is None:
            return GivenUpError(self.why)
        return OSError(self.number, self.why, self.name or None)


@value(frozen=True)
class PiecesPlace:
    """The port where a stager serves pieces, and what another one needs there for a connection."""

    port: int
    key: bytes
    token: bytes  # of one connection


def failure_of(error: Exception) -> Failure:
    if isinstance(error, GivenUpError):
        return Failure(str(error), None)
    if isinstance(error, OSError):
        return Failure(cause(error), error.errno or errno.EIO, str(error.filename or ""))
    return Failure(f"{type(error).__name__}: {error}", errno.EIO)


class Cipher:
    """Both ends of the questions and answers with one stager's key. Any thread may use it."""

    def __init__(self, key: bytes) -> None:
        self._key = AESGCM(key)

    def question(self, what: Read) -> list[Data]:
        """Return the frames of a question."""
        nonce = os.urandom(NONCE)
        return [nonce, self._key.encrypt(nonce, packing.pack(what), None)]

    def asked(self, frames: Sequence[Data]) -> Read | None:
        """Return what is asked. None: the frames are of nobody who has the key."""
        try:
            nonce, sealed = frames
            return packing.unpack(self._key.decrypt(nonce, sealed, None), Read)
        except (InvalidTag, ValueError, RecursionError):
            return None

    def answer(self, node: StageNode, question: Sequence[Data], what: Read) -> list[Data]:
        """Read the bytes, and return the frames of the answer."""
        kind: bytes = BYTES
        try:
            data = node.read(what.name, what.kept, what.identity, what.offset, what.length)
        except Exception as e:  # an answer is due in any case
            kind, data = FAILURE, packing.pack(failure_of(e))
        nonce = os.urandom(NONCE)
        return [kind, nonce, self._key.encrypt(nonce, data, kind + bytes(question[0]))]

    def answered(self, question: Sequence[Data], frames: Sequence[Data]) -> Data | Failure:
        """Return the bytes of an answer, or why there are none. Raises OSError if it is no answer
        to this question.
        """
        try:
            kind, nonce, sealed = frames
            data = self._key.decrypt(nonce, sealed, bytes(kind) + bytes(question[0]))
        except (InvalidTag, ValueError) as e:
            raise OSError(errno.EBADMSG, "another node has sent a wrong message") from e
        return packing.unpack(data, Failure) if bytes(kind) == FAILURE else data
