"""What an agent asks of its metrics service (`metrics_service.py`), and the reply."""

from __future__ import annotations

from hpclaunch.worker.messages import Kinds, Message, by_op


class Finish(Message):
    """The job is over: write the last file, from the agent's last answers. Their descriptors come
    along.
    """


class Complaint(Message):
    """There are no metrics for now."""

    why: str


REQUESTS: Kinds[Finish] = by_op([Finish])
REPLIES: Kinds[Complaint] = by_op([Complaint])
