"""Workers that `hpclaunch stacks` finds without their agents."""

import os

from hpclaunch.worker import stack_reader
from hpclaunch.worker.site import _hpclaunch_layout as layout


def test_a_fork_server_that_closes_a_descriptor_meanwhile_has_its_slots(monkeypatch):
    fd = os.memfd_create(layout.NAMES[0])
    os.truncate(fd, 2 * layout.SLOT)
    closed = os.dup(fd)
    os.close(closed)
    monkeypatch.setattr(os, "listdir", lambda _: [str(closed), str(fd)])
    assert len(stack_reader._slots(os.getpid())) == 2
    os.close(fd)
