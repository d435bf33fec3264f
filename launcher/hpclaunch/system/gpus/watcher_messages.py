"""Requests of an agent to its GPU watcher (`gpu_watcher.py`), and the replies."""

from __future__ import annotations

from typing import TypeAlias, get_args

from hpclaunch.core.health.findings import Finding
from hpclaunch.core.health.gpu_rules import XidSeen
from hpclaunch.core.protocol.gpu_use import GpuUse
from hpclaunch.worker.messages import Kinds, Message, by_op


class Check(Message):
    """Find all that is wrong before a round begins. Answered by Found with this round."""

    round: int
    dead: tuple[int, ...]  # pids of the last round's workers, whose memory is waited for


class AskUse(Message):
    """Find out how the GPUs are used. Answered by Used."""


class Found(Message):
    """The answer to a check; without a round, news: Xids at once, other findings periodically."""

    round: int | None
    findings: tuple[Finding, ...]
    xids: tuple[XidSeen, ...]


class Used(Message):
    use: tuple[GpuUse, ...]  # none where a GPU is lost, or NVML cannot be read


Request: TypeAlias = Check | AskUse
Reply: TypeAlias = Found | Used
REQUESTS: Kinds[Request] = by_op(get_args(Request))
REPLIES: Kinds[Reply] = by_op(get_args(Reply))
