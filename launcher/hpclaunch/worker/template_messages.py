"""What the fork server asks of its template, and what it learns from it.

The template can import nothing from here: `site/_hpclaunch_template.py` has the other end.
"""

from __future__ import annotations

from typing import TypeAlias, get_args

from .fork_server_messages import Worker
from .messages import Kinds, Message, by_op

# Requests


class Load(Message):
    """Import torch and these modules. Answered by Ready or Unfit."""

    modules: list[str]
    env: dict[str, str]  # with which the template was started
    own: list[str]  # variables that differ between workers
    blocked: list[int]  # signals that the user had blocked


class Fork(Message):
    """Fork workers, or the store process, or both; a listening socket comes along for the store.
    Answered by Forked, with the same `what`."""

    what: str
    store: str  # the file for errors of the store process; "": none is wanted
    workers: list[Worker]  # none: the store process alone
    env: dict[str, str]  # of all workers
    learn: list[int]  # descriptors of the fork server: one or two workers write lessons there
    restarts: int  # another one: workers write there why they become new interpreters


class Renew(Message):
    """Fork a successor that imports what a lesson says; a channel and two files come along."""

    steps: list[list[str | None]]
    own: list[str]
    idle: bool  # nobody waits for it


# Replies


class Failed(Message):
    """A module cannot be imported."""

    module: str
    why: str


class Unsafe(Message):
    """The template ends, since it has imported a module that a fork could break."""

    module: str
    why: str


class Ready(Message):
    words: list[str]  # the workers' command lines up to the script


class Unfit(Message):
    """Torch is imported, but a worker that is forked would differ from a fresh interpreter."""

    words: list[str]
    why: str


class Forked(Message):
    what: str
    pids: dict[int, int]  # rank -> pid
    store: int  # pid of the store process; 0: none
    why: str  # processes are missing


class Begun(Message):
    """A successor runs."""

    pid: int


Reply: TypeAlias = Failed | Unsafe | Ready | Unfit | Forked | Begun
REPLIES: Kinds[Reply] = by_op(get_args(Reply))
