"""The launches of a user on a machine, as their sockets answer."""

from __future__ import annotations

import json
import os
import select
import socket
import threading
from contextlib import contextmanager

import pytest

from hpclaunch.core.snapshot.job_snapshot import LaunchSnapshot
from hpclaunch.system.network import launches, view_client
from hpclaunch.system.network.view_socket import ViewSocket, file_of, name_of
from hpclaunch.system.shared import packing

OTHER = {"name": "newer", "slurm_id": "", "pid": 1, "job": {"is_complete": True, "agents": []}}


@contextmanager
def answering(answer):
    """An agent that answers every question with this."""
    agent, (reading, writing) = ViewSocket(), os.pipe()

    def serve():
        while reading not in select.select([agent, reading], [], [])[0]:
            for _, address in agent.receive():
                file = file_of(json.dumps(answer).encode())
                agent.answer(address, file)
                os.close(file)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        os.close(writing)
        thread.join()
        os.close(reading)
        agent.close()


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


def test_one_whose_log_directory_has_a_name_that_is_no_text():
    launch = LaunchSnapshot("mine", "", "n1", 1, "train.py", "/d\udcff/logs", 0.0, 0.0, None, "n2")
    with answering(json.loads(packing.pack(launch))):
        assert launches.of_process(1) == launch


@pytest.mark.parametrize("job", [{}, {"is_complete": True}, "running", {"agents": [{}]}])
def test_a_job_of_another_version_may_look_different(job):
    with answering({**OTHER, "job": job}):
        told = launches.all_launches({"PATH": "/nonexistent"})
    assert ("newer", "it runs with another version of hpclaunch") in told.others


@contextmanager
def silent(questions):
    """An agent that is stopped, with so many questions that it has not read; None: no room for
    more.
    """
    agent, other = (socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(2))
    with agent, other:
        name = b"\0" + name_of(os.geteuid()) + b"0"  # it is asked first
        agent.bind(name)
        other.setblocking(False)
        try:
            for _ in range(10_000 if questions is None else questions):
                other.sendto(b"look", name)
        except BlockingIOError:
            assert questions is None
        else:
            assert questions is not None
        yield


def test_one_that_has_no_room_for_questions_does_not_hide_the_others(monkeypatch):
    monkeypatch.setattr(view_client, "LIMIT", 0.5)
    with silent(None), answering(OTHER):
        assert [json.loads(data)["name"] for _, data in view_client.looked("newer")] == ["newer"]


def test_one_that_is_silent_does_not_keep_others_from_being_asked_again(monkeypatch):
    """Until they have told all: what they are asked for takes them a moment."""
    monkeypatch.setattr(view_client, "LIMIT", 0.5)
    monkeypatch.setattr(view_client, "PATIENCE", 0.4)
    asked = []
    ask = view_client.ask

    def counting(question, names, within=None):
        asked.append(names)
        return ask(question, names, within)

    monkeypatch.setattr(view_client, "ask", counting)
    with silent(0), answering({**OTHER, "job": {"is_complete": False, "agents": []}}):
        ((name, _),) = view_client.looked_patiently("newer")
    assert len(asked) > 1
    assert asked[1:] == [[name]] * (len(asked) - 1)


def test_an_empty_name_is_that_of_no_launch():
    """And not of the only one that there is: it would be stopped."""
    with answering(OTHER), pytest.raises(launches.NoLaunchError, match="is empty"):
        launches.find("", {"PATH": "/nonexistent"})


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
