"""Evidence of a dead agent: real fork servers, real agents' ports, and hosts that refuse."""

import contextlib
import math
import select
import signal
import socket
import subprocess
import sys
import time

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from serving import LIMIT, gone

from clocks import fast, set_fast
from helper_programs import program_after
from hpclaunch.system.network import death_inquiries, route
from hpclaunch.worker import death_notices
from hpclaunch.worker.notice_board import NoticeBoard
from surroundings import talker

KEY = b"k" * 32


def answer_to(question, key=KEY, text=b""):
    text = text or death_notices.notice(3, "first").encode()
    return death_notices.signed_answer(text, death_notices.notice_secret(key, text), question)


QUESTION = death_notices.new_question()
ANSWER = answer_to(QUESTION)
FORGED = answer_to(QUESTION, key=b"x" * 32)
MALFORMED = [
    b"\n",
    b"\xff" * 600,
    b"hpclaunch: dead: x y z\n",
    b"hpclaunch: dead: --5 x y\n",
    b"hpclaunch: dead: -\xc2\xb2 x y\n",
    b"hpclaunch: dead: " + b"5" * 480 + b" x y\n",
    b"hpclaunch: dead: \xff \xff \xff\n",
    FORGED,
    ANSWER,  # to another question
]
POSTED = (
    "from hpclaunch.worker import notice_board; "
    "notice_board.POSTED = notice_board.TAKE_OVER = 1000.0"
)
AGENT = """
import sys, time
from hpclaunch.system.network import death_inquiries
from hpclaunch.system.shared import helper
from hpclaunch.system.processes.fork_server_client import ForkServerClient
from hpclaunch.worker.fork_server_messages import Start, Started, Worker
port, incarnation, key = int(sys.argv[1]), sys.argv[2], sys.argv[3].encode()
helper._PROGRAM = sys.argv[5]
server = ForkServerClient()
server.send(death_inquiries.own_notice(key, 3, incarnation, port))
out = sys.argv[4]
worker = Worker(0, ["sleep", "1000"], {}, out, out)
server.send(Start([worker], {}, "", [], False, False, False, {}, (0, 0), False))
while not isinstance(started := server.hear()[0], Started):
    pass
print(server._process.pid, started.pid, flush=True)
sys.stdin.read()
server.close()
"""


@pytest.fixture
def late(tmp_path):
    """Return the file that makes the clock of a notice run fast."""
    return tmp_path / "late"


@pytest.fixture
def start(starts, tmp_path, late):
    """Start a process with a fork server and a worker, which has this port. The notice is posted
    until a test says that it is late.
    """
    started = []

    def start_agent(
        port,
    ):
        words = [sys.executable, "-c", AGENT, str(port), "first", KEY.decode()]
        words += [
            str(tmp_path / "out"),
            program_after(set_fast(late, "worker.notice_board"), POSTED),
        ]
        process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        process.server, process.worker = map(int, process.stdout.readline().split())
        return process

    yield start_agent
    for process in started:
        process.kill()
        process.communicate()
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(process.server).kill()


@pytest.fixture
def port():
    with route.reserve_port() as s:
        return s.getsockname()[1]


def found(*ports, incarnation="", agent=3, seconds=1.0):
    """Return whether an inquiry finds the agent dead within that time."""
    inquiries = death_inquiries.Inquiries(KEY)
    began = time.monotonic()
    try:
        inquiries.begin(agent, [("127.0.0.1", p) for p in ports], began, incarnation)
        while (now := time.monotonic()) < began + seconds and inquiries.next_deadline() < math.inf:
            wait = min(inquiries.next_deadline(), began + seconds) - now
            select.select([inquiries], [], [], max(0.0, wait))
            if inquiries.receive(time.monotonic()):
                return True
    finally:
        inquiries.close()
    return False


def until_found(*ports, **how):
    """Wait until an inquiry finds the agent dead: its fork server may take longer to post the
    notice than an inquiry takes.
    """
    deadline = time.monotonic() + LIMIT
    while not found(*ports, seconds=LIMIT, **how):
        assert time.monotonic() < deadline, "no notice is posted"


def test_the_fork_server_of_a_dead_agent_says_so(start, port, late):
    """The workers are killed before the notice; the fork server ends soon after it."""
    agent = start(port)
    assert not found(port, seconds=0.2)
    agent.kill()
    until_found(port)
    assert gone(agent.worker)
    until_found(port, incarnation="first")
    assert not found(port, incarnation="second")
    assert not found(port, agent=4)
    with fast(late):
        assert gone(agent.server)


def test_an_answer_has_the_number_of_the_last_question(start, port, late):
    """Even of one that does not know where the agent listened."""
    agent = start(port)
    agent.kill()
    until_found(port)
    inquiries = death_inquiries.Inquiries(KEY)
    try:
        inquiries.begin(3, [("127.0.0.1", port)], time.monotonic(), "first", number=1)
        inquiries.begin(3, [], time.monotonic(), number=2)
        while not (dead := inquiries.receive(time.monotonic())):
            assert inquiries.next_deadline() < math.inf, "it is not found in time"
            wait = inquiries.next_deadline() - time.monotonic()
            select.select([inquiries], [], [], max(0.0, wait))
        assert dead == [(3, 2)]
        with fast(late):
            assert gone(agent.server)
    finally:
        inquiries.close()


@pytest.mark.starts
def test_a_refused_connection_proves_nothing(port):
    """Neither does a silent host, or a program that sends anything else."""
    assert not found(port)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        assert not found(listener.getsockname()[1])
    with talker(FORGED) as stranger:
        assert not found(stranger)


@pytest.mark.starts
@pytest.mark.parametrize("words", MALFORMED, ids=range(len(MALFORMED)))
def test_what_a_stranger_says_at_the_port_does_no_harm(words):
    """Neither an agent that asks nor one that is started in that place is affected."""
    with talker(words) as stranger:
        assert not found(stranger, seconds=0.1)
        death_inquiries.take_down(KEY, 3, [stranger])


def proves_death(answer, agent=3, incarnation=""):
    return death_notices.proves_death(answer, QUESTION, KEY, agent, incarnation)


@pytest.mark.fuzz
@given(st.binary(max_size=death_notices.LONGEST))
def test_noise_is_no_notice(noise):
    assert not proves_death(noise)
    assert not proves_death(noise, incarnation="first")


@pytest.mark.fuzz
@given(st.integers(0, len(ANSWER) - 1), st.integers(0, 255))
def test_one_wrong_byte_makes_an_answer_worthless(position, value):
    answer = bytearray(ANSWER)
    answer[position] = value
    is_whole = bytes(answer) == ANSWER
    assert proves_death(bytes(answer)) == is_whole
    assert proves_death(bytes(answer), incarnation="first") == is_whole


@pytest.mark.fuzz
@given(
    st.binary(min_size=1, max_size=300) | st.binary(min_size=8, max_size=8).map(b"\xff?".__add__)
)
def test_whatever_is_asked(question):
    """A question is answered; after anything else the connection is closed."""
    ours, theirs = socket.socketpair()
    board = NoticeBoard()
    own = death_inquiries.own_notice(KEY, 3, "first", 0)
    board.prepare(own.port, own.notice, own.secret, own.release)
    board._asking.append(theirs)
    with ours, theirs:
        ours.send(question)
        board.serve(0.0)
        is_question = len(question) == 10 and question.startswith(b"\xff?")
        answer = ours.recv(death_notices.LONGEST)
        assert death_notices.proves_death(answer, question, KEY, 3) == is_question
        assert board.notice


def test_an_answer_is_of_one_agent_and_one_question_only():
    assert proves_death(ANSWER)
    assert not proves_death(ANSWER, 30)
    assert not proves_death(ANSWER, -3)
    assert not proves_death(ANSWER, incarnation="irst")
    assert proves_death(ANSWER, 30, "first")  # it has taken another place since
    assert not proves_death(answer_to(death_notices.new_question()))
    assert not proves_death(
        answer_to(QUESTION, text=b"hpclaunch: alive: 3 first"), incarnation="first"
    )


def test_one_port_of_several(start, port):
    agent = start(port)
    agent.kill()
    with route.reserve_port() as other:
        until_found(other.getsockname()[1], port)


def test_an_agent_that_ends_in_order_leaves_nothing(start, port):
    agent = start(port)
    agent.communicate()
    assert gone(agent.server)
    assert not found(port)


def test_with_both_killed_nobody_says_so(start, port):
    agent = start(port)
    agent.send_signal(signal.SIGSTOP)  # otherwise it might start another fork server
    psutil.Process(agent.server).kill()
    agent.kill()
    assert gone(agent.worker)
    assert not found(port)


def test_an_agent_that_is_started_anew_is_not_dead(start, port, monkeypatch):
    """An agent has the notice about its predecessor withdrawn before it listens."""
    agent = start(port)
    agent.kill()
    until_found(port)
    monkeypatch.setattr(death_inquiries, "RELEASE_LIMIT", LIMIT)
    death_inquiries.take_down(KEY, 3, [port])
    assert not found(port)
    assert gone(agent.server)


def test_only_that_agent_can_take_it_down(start, port):
    agent = start(port)
    agent.kill()
    until_found(port)
    death_inquiries.take_down(b"x" * 32, 3, [port])
    death_inquiries.take_down(KEY, 4, [port])
    with socket.create_connection(("127.0.0.1", port)) as stranger:
        stranger.send(b"go away" * 100)
    until_found(port)


def test_strangers_crowd_at_the_notice(start, port):
    agent = start(port)
    agent.kill()
    until_found(port)
    with contextlib.ExitStack() as strangers:
        for _ in range(200):
            strangers.enter_context(socket.create_connection(("127.0.0.1", port)))
        until_found(port)


def test_nobody_waits_for_what_the_dead_one_would_have_written(start, port):
    """The pipe or terminal that the agent had is closed with it: srun waits for that."""
    agent = start(port)
    agent.kill()
    agent.communicate(timeout=LIMIT)
    assert psutil.pid_exists(agent.server)


def test_an_inquiry_gives_up(port):
    """An inquiry without an answer ends, and leaves no connection behind."""
    before = psutil.Process().num_fds()
    assert not found(port, seconds=20)
    assert psutil.Process().num_fds() == before
