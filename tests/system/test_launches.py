"""The launches of a user on a machine, as their sockets answer."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import socket
import subprocess
import sys
import threading
from contextlib import closing, contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clocks import AheadClock
from damaged_data import damaged
from hpclaunch.core.protocol.job_snapshot import JobSnapshot, LaunchSnapshot
from hpclaunch.core.protocol.model import Request
from hpclaunch.core.protocol.stages import Stage
from hpclaunch.core.protocol.values import replace
from hpclaunch.system.network import launches, view_client
from hpclaunch.system.network.view_socket import CONNECTION, ViewSocket, file_of, name_of
from hpclaunch.system.shared import packing, slurm_steps
from surroundings import entered, impostor, names_like_those_of_agents

DATAGRAMS = socket.SOCK_DGRAM
OTHER = {"name": "newer", "slurm_id": "", "pid": 1, "job": {"is_complete": True, "agents": []}}

SNAPSHOTS = [
    packing.pack(LaunchSnapshot("mine", "", "n1", 1, "t.py", "/logs", 0.0, 0.0, None, "n2")),
    json.dumps(
        OTHER | {"job": {"is_complete": False, "agents": [{"gpus_of": 2, "gpus": []}]}}
    ).encode(),
    packing.pack(json.dumps(OTHER)),
]


@contextmanager
def answering(answer):
    """Run an agent that answers every question with this."""
    agent, (reading, writing) = ViewSocket(), os.pipe()

    def serve():
        while reading not in select.select([agent, reading], [], [])[0]:
            for _, end in agent.receive():
                file = file_of(json.dumps(answer).encode())
                agent.answer(end, file)
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


@pytest.mark.starts
def test_one_of_another_version_does_not_hide_the_others():
    with answering(OTHER):
        shown = launches.all_launches({"PATH": "/nonexistent"})
    assert ("newer", "it runs with another version of hpclaunch") in shown.others


@pytest.mark.starts
@pytest.mark.parametrize("answer", ["what?", [], {"name": "older"}, None])
def test_one_that_answers_something_else_does_not_hide_the_others(answer):
    with answering(answer), answering(OTHER):
        assert [json.loads(data)["name"] for _, data in view_client.looked("newer")] == ["newer"]
        shown = launches.all_launches({"PATH": "/nonexistent"})
    assert ("newer", "it runs with another version of hpclaunch") in shown.others


def test_one_whose_log_directory_has_a_name_that_is_no_text():
    launch = LaunchSnapshot("mine", "", "n1", 1, "train.py", "/d\udcff/logs", 0.0, 0.0, None, "n2")
    with answering(json.loads(packing.pack(launch))):
        assert launches.of_process(1) == launch


@pytest.mark.starts
@pytest.mark.parametrize("job", [{}, {"is_complete": True}, "running", {"agents": [{}]}])
def test_a_job_of_another_version_may_look_different(job):
    with answering({**OTHER, "job": job}):
        shown = launches.all_launches({"PATH": "/nonexistent"})
    assert ("newer", "it runs with another version of hpclaunch") in shown.others


@contextmanager
def silent(questions):
    """Simulate a stopped agent with this many unread questions; None fills its queue."""
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


@pytest.fixture
def _until_one_answers(monkeypatch):
    """Let the time for all answers be over as soon as that of a newer version has come."""
    clock, receive = AheadClock(), view_client._answer

    def answer(end):
        data = receive(end)
        if b'"newer"' in (data or b""):  # any other agent of this user may answer, too
            clock.ahead += view_client.LIMIT
        return data

    monkeypatch.setattr(view_client, "time", clock)
    monkeypatch.setattr(view_client, "LIMIT", 120.0)
    monkeypatch.setattr(view_client, "_answer", answer)


@pytest.mark.usefixtures("_until_one_answers")
def test_one_that_has_no_room_for_questions_does_not_hide_the_others():
    with silent(None), answering(OTHER):
        assert [json.loads(data)["name"] for _, data in view_client.looked("newer")] == ["newer"]


@pytest.mark.usefixtures("_until_one_answers")
def test_one_that_is_silent_does_not_keep_others_from_being_asked_again(monkeypatch):
    """The others are asked until their answers are complete, which takes a moment."""
    monkeypatch.setattr(view_client, "PATIENCE", 2.5 * view_client.LIMIT)
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
    """An empty name does not mean the only launch, which would then be stopped."""
    with answering(OTHER), pytest.raises(launches.NoLaunchError, match="is empty"):
        launches.find("", {"PATH": "/nonexistent"})


@pytest.fixture
def without_srun(tmp_path):
    """An environment in which squeue shows a running job, and srun is missing."""
    squeue = tmp_path / "squeue"
    squeue.write_text("#!/bin/sh\necho 71 2 RUNNING 71\n")
    squeue.chmod(0o755)
    return {"PATH": str(tmp_path)}


@pytest.mark.starts
def test_a_job_is_not_found_without_srun(without_srun):
    why = "cannot look at job 71: No such file or directory: srun"
    with pytest.raises(launches.NoLaunchError, match=f"^{why}$"):
        launches.find("71", without_srun)


@pytest.mark.starts
def test_jobs_are_listed_without_srun(without_srun):
    found = launches.all_launches(without_srun)
    assert ("71", "running: No such file or directory: srun") in found.others


@pytest.mark.parametrize("ask", [lambda found: found.watch(1.0), lambda f: f.request(Request.STOP)])
def test_a_launch_that_no_process_is_left_to_ask(ask, monkeypatch):
    def fails(*_, **__):
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(subprocess, "Popen", fails)
    found = launches.FoundLaunches("71", (), ("srun",), {"PATH": "/nonexistent"})
    with pytest.raises(launches.NoLaunchError, match=f"^{os.strerror(errno.EAGAIN)}$"):
        ask(found)


@pytest.mark.starts
def test_a_request_that_srun_refuses_says_why():
    refusing = ("sh", "-c", "echo srun: a warning >&2; echo srun: error: busy >&2; exit 1")
    found = launches.FoundLaunches("71", (), refusing, dict(os.environ))
    with pytest.raises(launches.UnreachableError, match=r"^cannot ask job 71: srun: error: busy$"):
        found.request(Request.STOP)


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


MEMBER = LaunchSnapshot("71.0", "71", "n2", 1, "a.py", "", 0.0, 0.0, None)
RUNS = slurm_steps.Ended(["71 1 RUNNING 71"], "")
RUNNING = JobSnapshot(Stage.RUNNING, 60.0, "n3", 0, 0, 60.0, "", 1, 1, 0, 3, ())


@pytest.mark.parametrize(
    ("squeue", "answers", "complaint", "may_run"),
    [
        (slurm_steps.Ended([], ""), [], "", False),
        (slurm_steps.Ended(["71 1 COMPLETING job"], ""), [], "", False),
        (slurm_steps.Ended([], "slurm_load_jobs error: Invalid job id specified"), [], "", False),
        (slurm_steps.Ended([], "slurm_load_jobs error: Unable to contact"), [], "", True),
        (RUNS, [], "", False),
        (RUNS, [], "srun: error: Required node not available", True),
        (RUNS, [MEMBER], "", True),
        (RUNS, [replace(MEMBER, head="n1")], "", True),
    ],
)
def test_a_launch_without_a_head_may_still_run(monkeypatch, squeue, answers, complaint, may_run):
    monkeypatch.setattr(view_client, "looked_patiently", lambda which: [])
    monkeypatch.setattr(slurm_steps, "run", lambda command, env: squeue)
    monkeypatch.setattr(launches, "_look", lambda step, which, env: (answers, complaint))
    with pytest.raises(launches.NoLaunchError) as e:
        launches.find("71", {})
    assert isinstance(e.value, launches.UnreachableError) == may_run


def test_a_job_that_is_over(monkeypatch):
    monkeypatch.setattr(view_client, "looked_patiently", lambda which: [])
    monkeypatch.setattr(slurm_steps, "run", lambda command, env: slurm_steps.Ended([], ""))
    with pytest.raises(launches.NoLaunchError, match=r"^job 71 is over$"):
        launches.find("71", {})


@pytest.mark.parametrize("which", ["71", "71+0", "71+1", "71.0"])
@pytest.mark.parametrize("nodelist", ["", "--nodelist=n3"])
def test_a_heterogeneous_job(monkeypatch, which, nodelist):
    """The head is in its second component: on the first node that is asked, or on another one."""
    parts = ["71 1 RUNNING 71+0", "72 2 RUNNING 71+1"]
    leading = LaunchSnapshot("71.0", "71", "n3", 1, "a.py", "", 0.0, 0.0, RUNNING)

    def look(step, which, env):
        assert which in ("71", "71.0")
        assert "--jobid=71" in step
        leads = "--het-group=1" in step and (not nodelist or nodelist in step)
        return [leading] if leads else [replace(MEMBER, head="n3")], ""

    monkeypatch.setattr(view_client, "looked_patiently", lambda which: [])
    monkeypatch.setattr(slurm_steps, "run", lambda command, env: slurm_steps.Ended(parts, ""))
    monkeypatch.setattr(launches, "_look", look)
    found = launches.find(which, {})
    assert found.only is leading
    assert {"--het-group=1", "--nodelist=n3"} < {*found.step}
    assert launches.all_launches({}) == launches.LaunchList([leading], [])


def test_filters_of_the_user_for_slurms_commands_hide_no_job():
    theirs = {"SCANCEL_PARTITION": "gpu"}
    theirs |= {"SQUEUE_PARTITION": "gpu", "SQUEUE_STATES": "PENDING", "SLURM_CONF": "/slurm.conf"}
    assert slurm_steps.environment(theirs) == {"SLURM_CONF": "/slurm.conf"}


def test_elements_of_an_array_are_named_as_squeue_names_them(monkeypatch):
    elements = [f"{number} 1 RUNNING 71_{number - 71}" for number in (73, 72)]
    monkeypatch.setattr(view_client, "looked_patiently", lambda which: [])
    monkeypatch.setattr(slurm_steps, "run", lambda command, env: slurm_steps.Ended(elements, ""))
    with pytest.raises(launches.NoLaunchError, match=r"name one: 71_1, 71_2$"):
        launches.find("71", {})


def test_a_heterogeneous_job_that_waits_is_listed_once(monkeypatch):
    parts = ["71 1 PENDING 71+0", "72 2 PENDING 71+1"]
    monkeypatch.setattr(view_client, "looked_patiently", lambda which: [])
    monkeypatch.setattr(slurm_steps, "run", lambda command, env: slurm_steps.Ended(parts, ""))
    assert launches.all_launches({}).others == [("71", "pending")]


MANY = pytest.mark.skipif("descriptors" in entered, reason="no process may have so many sockets")
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
ANSWERS = ["pipe", "directory", str(1 << 40), str(2_000_000_000)]


@pytest.mark.starts
@AS_ROOT
@pytest.mark.parametrize("answer", ANSWERS)
def test_what_another_user_answers_is_not_read(answer):
    """Even the descriptor of the answer does not reach this process."""
    names = names_like_those_of_agents(1)
    with impostor(names, answer):
        fds = os.listdir("/proc/self/fd")
        assert view_client.ask(b"look", names) == {}
        assert os.listdir("/proc/self/fd") == fds


@pytest.mark.starts
@MANY
@pytest.mark.usefixtures("_until_one_answers")
def test_many_that_are_silent_do_not_hide_one_that_answers():
    names = names_like_those_of_agents(400)
    with impostor(names), answering(OTHER):
        every = names + view_client.sockets()
        assert [json.loads(data)["name"] for _, data in view_client.looked("newer", every)] == [
            "newer"
        ]


def test_a_name_with_line_breaks_hides_no_agent():
    with socket.socket(socket.AF_UNIX) as odd, closing(ViewSocket()) as agent:
        odd.bind(f"\0odd \n\n{os.getpid()}\n\n".encode())
        assert agent.name in view_client.sockets()


def test_who_asks_has_no_name_that_others_could_take():
    """An agent that was stopped may answer when who asked has long gone."""
    name = b"\0" + name_of(os.geteuid()) + b"0"
    with socket.socket(socket.AF_UNIX, DATAGRAMS) as agent:
        agent.bind(name)
        assert view_client.ask(b"look", [name], 0.1) == {}
        word, (fd,), _, address = socket.recv_fds(agent, 64, 1)
    with socket.socket(fileno=fd) as end:
        assert (word, address, end.getsockname(), end.getpeername()) == (b"look", None, "", "")
        with pytest.raises(BrokenPipeError):
            end.send(b".")


def test_what_comes_along_with_a_question_is_closed():
    before = os.listdir("/proc/self/fd")
    with closing(ViewSocket()) as agent, socket.socket(socket.AF_UNIX, DATAGRAMS) as asker:
        asker.connect(agent.name)
        for fds in ([], [0], [0, 1], [asker.fileno()] * 20):
            socket.send_fds(asker, [b"look"], fds)
        for _, end in agent.receive():
            agent.answer(end, 0)
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.starts
@AS_ROOT
def test_what_another_user_sends_along_does_not_reach_the_agent():
    send = """
import os, socket, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
end = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
end.connect(bytes.fromhex(sys.argv[1]))
socket.send_fds(end, [b"strange"], [0])
"""
    with closing(ViewSocket()) as agent:
        subprocess.run([sys.executable, "-c", send, agent.name.hex()], check=True)
        before = os.listdir("/proc/self/fd")
        assert b"strange" not in words_of(agent)
        assert os.listdir("/proc/self/fd") == before


@pytest.mark.fuzz
@given(damaged(SNAPSHOTS))
def test_an_answer_of_any_bytes_does_no_harm(data):
    with contextlib.suppress(launches.NoLaunchError):
        launches._read(data)
    if view_client._launch(data):
        view_client._is_complete(data)
        launches._known([data])


@pytest.mark.fuzz
@given(st.lists(st.binary(min_size=1, max_size=100), max_size=8))
def test_any_question_is_read_up_to_its_limit(questions):
    with closing(ViewSocket()) as agent, socket.socket(socket.AF_UNIX, DATAGRAMS) as other:
        other.connect(agent.name)
        for question in questions:
            ours, theirs = socket.socketpair(socket.AF_UNIX, CONNECTION)
            with ours, theirs:
                socket.send_fds(other, [question], [theirs.fileno()])
        words = iter(words_of(agent))
        assert all(question[:64] in words for question in questions)  # in this order


def words_of(agent):
    """Return the questions that have come; others on this machine may have asked as well."""
    received = agent.receive()
    for _, end in received:
        end.close()
    return [word for word, _ in received]


@pytest.mark.parametrize("data", [b"[" * 100_000, b"1" * 5000, "{}".encode("utf-16")])
def test_an_answer_that_json_does_not_like_does_no_harm(data):
    assert view_client._launch(data) == {}
    for sent in (data, packing.pack(data.decode(errors="replace"))):
        with pytest.raises(launches.NoLaunchError):
            launches._read(sent)
