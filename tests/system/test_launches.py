"""The launches of a user on a machine, as their sockets answer."""

from __future__ import annotations

import json
import os
import select
import threading
from contextlib import contextmanager

import pytest

from hpclaunch.core.snapshot.job_snapshot import LaunchSnapshot
from hpclaunch.system.network import launches, view_client
from hpclaunch.system.network.view_socket import ViewSocket, file_of

OTHER = {"name": "newer", "slurm_id": "", "pid": 1, "job": {"is_complete": True, "agents": []}}


@contextmanager
def answering(answer):
    """An agent that answers every question with this."""
    socket, (reading, writing) = ViewSocket(), os.pipe()

    def serve():
        while reading not in select.select([socket, reading], [], [])[0]:
            for _, address in socket.receive():
                file = file_of(json.dumps(answer).encode())
                socket.answer(address, file)
                os.close(file)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        os.close(writing)
        thread.join()
        os.close(reading)
        socket.close()


def test_one_of_another_version_does_not_hide_the_others():
    with answering(OTHER):
        told = launches.all_launches({"PATH": "/nonexistent"})
    assert ("newer", "it runs with another version of hpclaunch") in told.others


@pytest.mark.parametrize("answer", ["what?", [], {"name": "older"}, None])
def test_one_that_answers_something_else_does_not_hide_the_others(answer):
    with answering(answer), answering(OTHER):
        assert [json.loads(data)["name"] for _, data in view_client.looked("newer")] == ["newer"]
        told = launches.all_launches({"PATH": "/nonexistent"})
    assert ("newer", "it runs with another version of hpclaunch") in told.others


def test_one_that_is_asked_by_its_pid():
    with answering({**OTHER, "pid": 4711}):
        assert [json.loads(data)["name"] for _, data in view_client.looked(4711)] == ["newer"]
        assert view_client.looked("4711") == []


def test_several_launches_of_a_job_are_named():
    both = [
        LaunchSnapshot(name, "71", "n1", 1, "a.py", "", 0.0, 0.0, None) for name in ("71.0", "71.1")
    ]
    assert launches.FoundLaunches("71", both[:1]).only is both[0]
    with pytest.raises(launches.NoLaunchError, match=r"several launches, name one: 71\.0, 71\.1"):
        _ = launches.FoundLaunches("71", both).only
