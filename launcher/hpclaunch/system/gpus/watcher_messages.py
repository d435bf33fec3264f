"""Requests of an agent to its GPU watcher (`gpu_watcher.py`), and the replies."""

from __future__ import annotations

from typing import TypeAlias, get_args

from hpclaunch.core.health.findings import Finding
from hpclaunch.core.health.gpu_rules import XidSeen
from hpclaunch.core.protocol.gpu_use import GpuUse
from hpclaunch.worker.messages import Kinds, Message, by_op


class Check(Message):
    """Find all that is wrong before a round begins. Answered by a report with this round."""

    round: int
    dead: tuple[int, ...]  # pids of the last round's workers, whose memory is waited for


class AskUse(Message):
    """Find out how the GPUs are used. Answered by a report with `use`."""


class GpuReport(Message):
    """The answer to a request; otherwise news: Xids at once, other findings periodically."""

    findings: tuple[Finding, ...] = ()
    round: int | None = None  # of the check that it answers
    xids: tuple[XidSeen, ...] = ()
    # The answer to AskUse; () where a GPU is lost, or NVML cannot be read.
    use: tuple[GpuUse, ...] | None = None


Request: TypeAlias = Check | AskUse
REQUESTS: Kinds[Request] = by_op(get_args(Request))
REPLIES: Kinds[GpuReport] = by_op([GpuReport])
