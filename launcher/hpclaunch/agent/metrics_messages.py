"""The messages between an agent and its metrics service (`metrics_service.py`)."""

from __future__ import annotations

from hpclaunch.worker.messages import Kinds, Message, by_op


class Finish(Message):
    """The job is over: write the last file, from the agent's last answers. Their descriptors are
    sent with this message.
    """


class Complaint(Message):
    """The metrics cannot be served for now."""

    why: str


REQUESTS: Kinds[Finish] = by_op([Finish])
REPLIES: Kinds[Complaint] = by_op([Complaint])
