"""The messages between an agent and its MPS keeper (`mps_keeper.py`).

A key names a group of GPUs: their UUIDs, separated by commas, or "" for a foreign daemon.
"""

from __future__ import annotations

from typing import TypeAlias, get_args

from .messages import Kinds, Message, by_op

# Requests


class Group(Message):
    """The GPUs of one daemon."""

    uuids: list[str]
    owned: bool  # this agent starts the daemon; otherwise another agent of the node does


class Prepare(Message):
    """Prepare all daemons for a round, and end the watch over the workers of the last one. Answered
    by Ready, Failed or Occupied, with its number, and perhaps Waiting before."""

    number: int
    groups: list[Group]
    foreign: str  # the directory of a daemon that somebody else has started; "": none


class Watch(Message):
    """Find out whether these workers are clients. Answered by Clients, Outside or Unmapped."""

    workers: dict[int, int]  # rank -> pid


Request: TypeAlias = Prepare | Watch
REQUESTS: Kinds[Request] = by_op(get_args(Request))

# Events


class Swept(Message):
    """The directories that killed keepers have left behind were removed."""

    names: list[str]


class Ready(Message):
    number: int
    directories: dict[str, str]  # key -> where CUDA finds the daemon


class Failed(Message):
    number: int
    why: str


class Waiting(Message):
    """A foreign daemon serves another user, and is waited for."""

    number: int
    why: str


class Occupied(Message):
    """A foreign daemon has served another user for too long."""

    number: int
    why: str


class Clients(Message):
    """All workers are clients. Sent once."""

    counts: dict[str, int]  # key -> clients


class Outside(Message):
    """Some ranks use CUDA without being clients, as CUDA does where it cannot reach MPS. Sent
    once."""

    ranks: list[int]


class Unmapped(Message):
    """Clients are unknown: the pids that a daemon reports are not those of processes here."""


Event: TypeAlias = Swept | Ready | Failed | Waiting | Occupied | Clients | Outside | Unmapped
EVENTS: Kinds[Event] = by_op(get_args(Event))
