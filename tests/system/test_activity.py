"""The activity of real workers after SIGTERM: one that saves is left alone, one that only waits is
ended.
"""

import contextlib
import os
import select
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from serving import LIMIT, Client, eventually, python

from hpclaunch.worker import activity, processes, sock_diag
from hpclaunch.worker.fork_server_messages import KillIdle, Stop
from surroundings import free_port

pytestmark = pytest.mark.starts

UNAVAILABLE = 77  # exit code: this kernel, or a container around it, does not have the system calls
PIECES = 4  # between two looks; one takes a fifth of a second

# `saved()` follows each piece, and ends the worker once the test says that it is enough. It leaves
# a mark that moves no byte through this process.
BEGIN = """
import ctypes, mmap, os, select, signal, socket, struct, subprocess, sys, threading, time

PIECE = 1 << 18
libc = ctypes.CDLL(None, use_errno=True)
number = 0

def saved(pause=0.2):
    global number
    os.mkdir(f"piece-{number}")
    number += 1
    if os.path.exists("enough"):
        os._exit(7)
    time.sleep(pause)

def call(*words):
    result = libc.syscall(*words)
    if result < 0:
        print(os.strerror(ctypes.get_errno()), file=sys.stderr)
        os._exit(77)
    return result

def connect():
    return socket.create_connection(("127.0.0.1", int(os.environ["SERVER"])))

def rest():
    while True:
        time.sleep(600)

stopped = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stopped.set())
"""
SAVE = """
open("up", "w").close()
while not stopped.is_set():
    time.sleep(0.05)
"""

MAPPED = """
file = os.open("saved", os.O_RDWR | os.O_CREAT)
os.ftruncate(file, 100 * PIECE)
there = mmap.mmap(file, 100 * PIECE)
for at in range(0, 100 * PIECE, PIECE):
    there[at : at + PIECE] = bytes([number]) * PIECE
    there.flush(at, PIECE)
    saved()
"""

# io_uring_setup, io_uring_enter, IORING_OP_WRITE; the offsets are those of struct io_uring_params.
URING = """
parameters = bytearray(120)
ring = call(425, 4, (ctypes.c_char * 120).from_buffer(parameters), 0, 0, 0, 0)
head, tail, mask, _, _, _, array = struct.unpack_from("7I", parameters, 40)
done_head, done_tail = struct.unpack_from("2I", parameters, 80)
submissions = mmap.mmap(ring, 4096)
completions = mmap.mmap(ring, 4096, offset=0x8000000)
entries = mmap.mmap(ring, 4096, offset=0x10000000)
file = os.open("saved", os.O_WRONLY | os.O_CREAT)
piece = ctypes.create_string_buffer(bytes(range(256)) * (PIECE // 256))
while True:
    struct.pack_into(
        "=BBHiQQII", entries, 0, 23, 0, 0, file, number * PIECE, ctypes.addressof(piece), PIECE, 0
    )
    struct.pack_into("I", submissions, array, 0)
    struct.pack_into("I", submissions, tail, number + 1)
    call(426, ring, 1, 1, 1, None, 0)
    struct.pack_into("I", completions, done_head, number + 1)
    saved()
"""

# io_setup, io_submit, io_getevents, IOCB_CMD_PWRITE
AIO = """
context = ctypes.c_ulong(0)
call(206, 4, ctypes.byref(context))
file = os.open("saved", os.O_WRONLY | os.O_CREAT)
piece = ctypes.create_string_buffer(bytes(range(256)) * (PIECE // 256))
while True:
    request = struct.pack(
        "=QIIHhIQQqQII",
        *(0, 0, 0, 1, 0, file, ctypes.addressof(piece), PIECE, number * PIECE, 0, 0, 0)
    )
    block = ctypes.create_string_buffer(request, 64)
    pointers = (ctypes.c_void_p * 1)(ctypes.addressof(block))
    call(209, context, ctypes.c_long(1), pointers)
    call(208, context, ctypes.c_long(1), ctypes.c_long(1), ctypes.create_string_buffer(32), None)
    saved()
"""

SENT = """
server = connect()
while True:
    server.sendall(bytes(PIECE))
    saved()
"""

STUCK_IN_SEND = """
server = connect()
saved()
threading.Thread(target=lambda: [server.sendall(bytes(PIECE)) for _ in range(1000)]).start()
while True:
    saved()
"""

# An event loop: it waits in poll() until the slow server has taken some more.
UNACKNOWLEDGED = """
server = connect()
server.setblocking(False)
try:
    while True:
        server.send(bytes(PIECE))
except BlockingIOError:
    pass
while True:
    select.select([], [server], [], 0.2)
    saved(0)
"""

ASKED = """
server = connect()
server.sendall(b"complete the upload")
threading.Thread(target=server.recv, args=(100,)).start()
while True:
    saved()
"""

IN_ANOTHER_SESSION = '''
program = """
import os, sys, time
while True:
    sys.stdout.buffer.write(bytes(1 << 18))
    sys.stdout.buffer.flush()
    time.sleep(0.2)
"""
with open("saved", "w") as file:
    subprocess.Popen([sys.executable, "-c", program], stdout=file, start_new_session=True)
while True:
    saved()
'''

# A process in vfork() is in the same state as in fsync() on a slow disk.
UNINTERRUPTIBLE = '''
os.mkfifo("fifo")
program = """
import os
how = [(os.POSIX_SPAWN_OPEN, 0, "fifo", os.O_RDONLY, 0)]
os.posix_spawn("/bin/true", ["true"], os.environ, file_actions=how)
"""
subprocess.Popen([sys.executable, "-c", program])
while True:
    saved()
'''

COMPUTING = """
def compute():
    while True:
        pass
threading.Thread(target=compute, daemon=True).start()
while True:
    saved()
"""

SAVERS = {
    "mmap and msync": MAPPED,
    "io_uring": URING,
    "libaio": AIO,
    "a socket": SENT,
    "a socket, in send": STUCK_IN_SEND,
    "a socket, to a server that takes nothing": UNACKNOWLEDGED,
    "a socket, before the answer": ASKED,
    "another session": IN_ANOTHER_SESSION,
    "a call that cannot be interrupted": UNINTERRUPTIBLE,
    "computing": COMPUTING,
}
TAKES = {"a socket": 1 << 18}  # bytes that the server reads at a time

WAITERS = {
    "sleeps": "open('up', 'w').close()\nrest()",
    "waits for a child": "child = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
    "open('up', 'w').close()\nwhile True: child.wait()",
    "has a child that has ended": "child = subprocess.Popen(['true'])\ntime.sleep(0.5)\n"
    "open('up', 'w').close()\nrest()",
    "reads from a pipe": "ends = os.pipe()\nopen('up', 'w').close()\nos.read(ends[0], 1)",
    "has threads that look now and then": """
def watch():
    while True:
        time.sleep(0.1)
for _ in range(4):
    threading.Thread(target=watch, daemon=True).start()
server = connect()
server.sendall(b"an old question")
open("up", "w").close()
stopped.wait()
server.recv(100)
""",
}

COLLECTIVE = """
import os, signal, time
import torch.distributed as dist
signal.signal(signal.SIGTERM, lambda *_: None)
rank = int(os.environ["RANK"])
method = f"tcp://127.0.0.1:{os.environ['SERVER']}"
dist.init_process_group("gloo", init_method=method, rank=rank, world_size=2)
dist.barrier()
open(f"up-{rank}", "w").close()
if rank == 0:
    dist.barrier()
while True:
    time.sleep(600)
"""


@pytest.fixture
def client(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    client = Client(tmp_path)
    yield client
    client.server.close()


@pytest.fixture
def server():
    """Run a server; yield its port and a list with the bytes that it reads at a time."""
    takes, over, held = [0], threading.Event(), []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.05)

        def serve():
            while not over.is_set():
                with contextlib.suppress(TimeoutError):
                    held.append(listener.accept()[0])
                for connection in held if takes[0] else ():
                    connection.setblocking(False)
                    with contextlib.suppress(BlockingIOError):
                        connection.recv(takes[0])

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1], takes
        over.set()
        thread.join()
    for connection in held:
        connection.close()


@pytest.mark.parametrize("how", SAVERS)
def test_whoever_saves_is_left_alone(client, server, tmp_path, how):
    port, takes = server
    takes[0] = TAKES.get(how, 0)
    client.start(python(BEGIN + SAVE + SAVERS[how]), env={"SERVER": str(port)})
    eventually((tmp_path / "up").exists)
    client.server.send(Stop(signal.SIGTERM))
    for look in (1, 2, 3):
        eventually_saved(client, tmp_path / f"piece-{look * PIECES}")
        client.kill_idle()
    (tmp_path / "enough").mkdir()
    exited = client.until("exit")
    assert (exited["code"], exited["signal"]) == (7, 0)


def eventually_saved(client, piece):
    limit = time.monotonic() + LIMIT
    while not piece.exists():
        if select.select([client.server], [], [], 0.01)[0]:
            exited = client.until("exit")
            if exited["code"] == UNAVAILABLE:
                pytest.skip(client.path(0).read_text())
            raise AssertionError(f"{exited}: {client.path(0).read_text()}")
        assert time.monotonic() < limit, f"{piece.name} has never come"


def how_they_end(client, workers):
    """Return the signals that ended the workers, which may still be handling SIGTERM at first."""
    ended = []
    limit = time.monotonic() + LIMIT
    while len(ended) < workers:
        assert time.monotonic() < limit, f"of {workers} workers, only {ended} have ended"
        client.server.send(KillIdle())
        if select.select([client.server], [], [], 0.5)[0]:
            client.hear()
        ended += [reply for reply in client.events if reply["event"] == "exit"]
        client.events = []
    return [reply["signal"] for reply in ended]


@pytest.mark.parametrize("how", WAITERS)
def test_whoever_only_waits_is_ended(client, server, tmp_path, how):
    client.start(python(BEGIN + WAITERS[how]), env={"SERVER": str(server[0])})
    eventually((tmp_path / "up").exists)
    client.server.send(Stop(signal.SIGTERM))
    assert how_they_end(client, 1) == [signal.SIGKILL]


@pytest.mark.torch
def test_ranks_that_wait_for_each_other_are_ended(client, tmp_path):
    environ = {"SERVER": str(free_port())}
    client.start(python(COLLECTIVE), python(COLLECTIVE), env=environ)
    for rank in (0, 1):
        eventually((tmp_path / f"up-{rank}").exists)
    client.server.send(Stop(signal.SIGTERM))
    first, _ = how_they_end(client, 2)  # the second may see that the first is gone
    assert first == signal.SIGKILL


def test_a_network_that_cannot_be_seen(monkeypatch):
    """In a sandbox without sock_diag, any process with a socket may be sending."""

    def refuse(_request):
        raise PermissionError

    monkeypatch.setattr(sock_diag, "dump", refuse)
    left, right = socket.socketpair()
    with left, right:
        with _looks_at_one_that_sleeps() as is_idle:
            eventually(is_idle)  # it may still be about to fall asleep
        with _looks_at_one_that_sleeps(left.fileno()) as is_idle:
            assert not any(is_idle() for _ in range(20) if not time.sleep(0.05))


@contextlib.contextmanager
def _looks_at_one_that_sleeps(*fds):
    """Start a program that sleeps, with these descriptors; yield a function that looks at it."""
    with subprocess.Popen(["sleep", "600"], pass_fds=fds, start_new_session=True) as child:
        seen = activity.Activity()
        eventually(lambda: os.readlink(f"/proc/{child.pid}/exe").endswith("sleep"))
        eventually(lambda: activity._sleeps(child.pid))
        others = {process.pid for process in psutil.Process().children()} - {child.pid}
        seen.begin([child.pid], others)
        try:
            yield lambda: seen.idle([child.pid], others)
        finally:
            child.kill()


@pytest.mark.fuzz
@given(st.binary(min_size=1, max_size=15).filter(lambda name: b"\0" not in name))
def test_whatever_a_process_is_called(name):
    before = Path("/proc/self/comm").read_bytes()
    known = processes.stat("self"), processes.status_of("self").keys()
    Path("/proc/self/comm").write_bytes(name)
    try:
        assert processes.stat("self")[:4] == known[0][:4]
        assert processes.status_of("self").keys() == known[1]
        assert processes.status_of("self")[b"Pid"] == str(os.getpid()).encode()
        assert processes.program("self") == name.decode(errors="replace")
    finally:
        Path("/proc/self/comm").write_bytes(before)
