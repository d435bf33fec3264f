"""The messages between the fork server and its template (`site/_hpclaunch_template.py`)."""

from __future__ import annotations

from typing import TypeAlias, get_args

from .fork_server_messages import Step, Worker
from .messages import Kinds, Message, by_op

NO_TORCH = 3  # exit code of a template whose Python has no torch

# Requests


class Load(Message):
    """Import torch and these modules. Answered by Ready or Unfit."""

    modules: list[str]
    env: dict[str, str]  # with which the template was started
    own: list[str]  # variables that differ between workers
    blocked: list[int]  # signals that the user had blocked


class Fork(Message):
    """Fork workers, the store process with a listening socket, or both. Answered by Forked, with
    the same `what`."""

    what: str
    store: str  # the file for errors of the store process; "": none is wanted
    workers: list[Worker]  # none: the store process alone
    env: dict[str, str]  # of all workers
    learn: list[int]  # descriptors of the fork server: one or two workers write lessons there
    restarts: int  # another descriptor, to which workers write why they become new interpreters


class Renew(Message):
    """Fork a successor that does the steps of a lesson, with a channel and two files for its
    output. Answered on that channel, by Begun and then Ready or Unsafe."""

    steps: list[Step]
    own: list[str]
    idle: bool  # nobody waits for it


Request: TypeAlias = Load | Fork | Renew
REQUESTS: Kinds[Request] = by_op(get_args(Request))


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
    """torch is imported, but a worker that is forked would differ from a fresh interpreter."""

    words: list[str]
    why: str


class Forked(Message):
    what: str
    pids: dict[int, int]  # rank -> pid
    store: int  # pid of the store process; 0: none
    why: str  # why processes are missing


class Begun(Message):
    """A successor runs."""

    pid: int


Reply: TypeAlias = Failed | Unsafe | Ready | Unfit | Forked | Begun
REPLIES: Kinds[Reply] = by_op(get_args(Reply))
