"""The daemon and the servers of the stand-in for nvidia-cuda-mps-control."""

# ruff: noqa: T201

import ctypes
import datetime
import fcntl
import json
import os
import select
import signal
import socket
import struct
import sys
import time
from contextlib import suppress

from mps_stand_in import DEVICES, END, FOREVER, LOGS, LONGEST, PIPES, SHIFT, TRAITS


def listener(name, mode):
    path = f"{PIPES}/{name}"
    if len(path) > LONGEST:
        sys.exit(1)
    if os.path.exists(path):
        os.unlink(path)
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.bind(path)
    os.chmod(path, mode)
    server.listen(64)
    return server


def credentials(connection):
    """Return (pid, uid) of the other end, from the kernel."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return struct.unpack("3i", data)[:2]


def pack(**fields):
    return json.dumps(fields).encode()


class Server:
    """The daemon's view of one server, which reports every change of its state."""

    def __init__(self, uid):
        self.uid = uid
        self.state, self.clients = "INITIALIZING", {}
        self.ended = None  # its exit status
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pid = os.fork()
        if not self.pid:
            try:
                os.closerange(3, theirs.fileno())  # including the daemon's own sockets
                os.closerange(theirs.fileno() + 1, 1024)
                os.setuid(uid)
                serve(theirs)
            finally:
                os._exit(1)
        theirs.close()

    def receive(self):
        while select.select([self.channel], [], [], 0)[0]:
            try:
                data = self.channel.recv(1 << 16)
            except ConnectionResetError:  # it ended before it had read all data
                data = b""
            if not data:
                self.ended = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
                return
            report = json.loads(data)
            self.state, self.clients = report["state"], report["clients"]

    def end(self, now):
        if now:
            os.kill(self.pid, signal.SIGKILL)
        else:
            with suppress(OSError):
                self.channel.send(b"end")


def serve(daemon):
    """Run as a server, which keeps its clients' connections until they or the daemon end it."""
    # A file of /proc would refuse a process that has changed its user.
    ctypes.CDLL(None).prctl(15, b"nvidia-cuda-mps-server", 0, 0, 0)
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, signal.SIG_DFL)
    if "broken" in TRAITS:
        os._exit(1)
    clients = {}  # connection -> [pid, devices]
    ending, ready_at = False, time.monotonic() + 0.5 if "slow-start" in TRAITS else None
    state = "INITIALIZING" if ready_at or "initializing" in TRAITS else "ACTIVE"

    def report():
        known = {str(pid): devices for pid, devices in clients.values()}
        with suppress(OSError):  # the daemon may have been killed
            daemon.send(pack(state=state, clients=known))

    report()
    orphan = False
    while True:
        if ending and not clients and "slow" not in TRAITS:
            os._exit(0)
        wait = None if ready_at is None else max(0.0, ready_at - time.monotonic())
        ready, _, _ = select.select([*clients] if orphan else [daemon, *clients], [], [], wait)
        if ready_at is not None and time.monotonic() >= ready_at:
            state, ready_at = "ACTIVE", None
            report()
        for connection in ready:
            if connection is daemon:
                data, fds, _, _ = socket.recv_fds(daemon, 1 << 16, 1)
                if data == b"end":
                    ending = True
                elif not data:
                    orphan = True  # the worst case: the server does not end by itself
                else:
                    client = socket.socket(fileno=fds[0])
                    if ending or state != "ACTIVE":
                        client.send(pack(error="CUDA_ERROR_MPS_SERVER_NOT_READY"))
                        client.close()
                    else:
                        clients[client] = [credentials(client)[0], json.loads(data)]
                        report()
                        client.send(pack(ok=True))
                continue
            try:
                data = connection.recv(1 << 16)
            except OSError:
                data = b""
            if not data:
                connection.close()
                del clients[connection]
                if state == "FAULT" and not clients and "stuck" not in TRAITS:
                    state = "ACTIVE"
            else:  # a fatal fault of one client is a fault of all
                state = "FAULT"
                for other in sorted(clients, key=lambda one: one is connection):  # that one last
                    with suppress(OSError):
                        other.send(pack(error="CUDA_ERROR_ILLEGAL_ADDRESS"))
            report()


class Daemon:
    def __init__(self, log):
        self.log = log
        self.servers = []
        self.failed = False  # some server has ended badly
        self.pending = []  # (connection, uid, devices) of clients that wait for another's server
        self.fronts = {}  # connection -> uid
        self.percentage, self.limits, self.priority = 100.0, {}, 0
        self.quitting = None  # (connection, when the servers are forced)

    def say(self, words):
        now = datetime.datetime.now().isoformat(" ", "milliseconds")
        self.log.write(f"[{now} Control {os.getpid():5}] {words}\n")
        self.log.flush()

    def run(self):
        os.makedirs(PIPES, mode=0o777, exist_ok=True)
        self.lock = os.open(f"{PIPES}/control_lock", os.O_WRONLY | os.O_CREAT, 0o666)
        try:
            fcntl.lockf(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            print("An instance of this daemon is already running")
            sys.exit(1)
        with suppress(FileExistsError):
            os.mkfifo(f"{PIPES}/log", 0o777)
        self.say(f"Starting control daemon using socket {PIPES}/control")
        if "refuses" in TRAITS:
            self.say("Cannot access the GPU: this stand-in refuses to start")
            sys.exit(1)
        self.privileged = listener("control_privileged", 0o755)  # no test connects to it
        self.control = listener("control", 0o666)
        self.say(
            f"To connect CUDA applications to this daemon, set env CUDA_MPS_PIPE_DIRECTORY={PIPES}"
        )
        yield  # it listens
        while True:
            channels = [server.channel for server in self.servers]
            _, limit = self.quitting or (None, FOREVER)
            wait = None if limit == FOREVER else max(0.0, limit - time.monotonic())
            ready, _, _ = select.select([self.control, *channels, *self.fronts], [], [], wait)
            self.receive()
            if self.control in ready:
                self.accept()
            for front in [front for front in self.fronts if front in ready]:
                self.command(front)
            self.proceed()

    def receive(self):
        for server in list(self.servers):
            server.receive()
            if server.ended is not None:
                self.servers.remove(server)
                self.say(f"Server {server.pid} exited with status {server.ended}")
                self.failed = self.failed or server.ended != 0
                self.adopt()

    def accept(self):
        connection, _ = self.control.accept()
        self.say("Accepting connection...")
        pid, uid = credentials(connection)
        try:
            hello = connection.recv(1 << 16)
        except OSError:
            hello = b""
        if hello == b"UI":
            self.say("NEW UI")
            self.fronts[connection] = uid
        elif hello:
            self.say(f"NEW CLIENT {pid} from user {uid}")
            self.pending.append((connection, uid, json.loads(hello)["devices"]))
            self.adopt()

    def adopt(self):
        """Pass waiting clients to the server of their user, one user at a time."""
        for client in list(self.pending):
            connection, uid, wanted = client
            devices = self.visible(wanted)
            if self.quitting or not devices:
                error = (
                    "CUDA_ERROR_NO_DEVICE" if not devices else "CUDA_ERROR_MPS_CONNECTION_FAILED"
                )
                connection.send(pack(error=error))
            elif self.servers and self.servers[0].uid != uid:
                self.servers[0].end(now=False)
                continue
            else:
                server = self.servers[0] if self.servers else self.start(uid)
                try:
                    socket.send_fds(server.channel, [json.dumps(devices).encode()],
                                    [connection.fileno()])  # fmt: skip
                except OSError:
                    connection.send(pack(error="CUDA_ERROR_MPS_SERVER_NOT_READY"))
            self.pending.remove(client)
            connection.close()

    def visible(self, wanted):
        """Return the GPUs that a client sees: by UUID, or by the number that the daemon uses."""
        own = DEVICES.split(",") if DEVICES else ["GPU-0"]
        if not wanted:
            return own
        seen = []
        for entry in wanted.split(","):
            if entry in own or (not DEVICES and entry.startswith("GPU-")):
                seen.append(entry)
            elif entry.isdigit() and int(entry) < len(own):
                seen.append(own[int(entry)])
            else:
                break
        return seen

    def start(self, uid):
        server = Server(uid)
        self.servers.append(server)
        self.say(f"Starting new server {server.pid} for user {uid}")
        return server

    def command(self, front):
        try:
            line = front.recv(1 << 16).decode()
        except OSError:
            line = ""
        if not line:
            self.say("UI closed")
            del self.fronts[front]
            front.close()
        if not line or "silent" in TRAITS:
            return
        line = line.rstrip("\n")
        self.say(f"Cmd:{line}")
        name, *words = line.split() or [""]
        method = getattr(self, f"do_{name}", None)
        if method is None or (name == "get_server_status" and "535" in TRAITS):
            answer = [f'Unknown command "{name}"']
        else:
            answer = method(front, words)
        if answer is not None:
            for one in answer:
                self.say(one)
            with suppress(OSError):  # the front end may have been killed
                front.send("".join(f"{one}\n" for one in answer).encode() + END)

    def proceed(self):
        """End after all servers have ended, and kill them after the limit."""
        if not self.quitting:
            return
        front, limit = self.quitting
        if time.monotonic() >= limit:
            for server in self.servers:
                server.end(now=True)
        if not self.servers:
            os.unlink(f"{PIPES}/log")
            code = int(self.failed)
            self.say(f"Exit with status {code}")
            with suppress(OSError):
                front.send(END)
            sys.exit(code)

    # Commands return the lines of the answer, or None if the answer follows later

    def server(self, words):
        pid = int(words[0]) if words and words[0].isdigit() else 0
        return pid, next((one for one in self.servers if one.pid + SHIFT == pid), None)

    def do_get_server_list(self, front, words):
        return [str(server.pid + SHIFT) for server in self.servers]

    def do_get_client_list(self, front, words):
        pid, server = self.server(words)
        if not server:
            return [f"Server {pid} not found"]
        return [str(0 if "blind" in TRAITS else int(pid) + SHIFT) for pid in server.clients]

    def do_get_server_status(self, front, words):
        pid, server = self.server(words)
        return [server.state if server else f"Server {pid} not found"]

    def do_get_device_client_list(self, front, words):
        pid, server = self.server(words)
        if words and not server:
            return [f"Server {pid} not found"]
        chosen = [server] if server else self.servers
        return [f"{device} {client}" for one in chosen
                for client, devices in one.clients.items() for device in devices]  # fmt: skip

    def do_ps(self, front, words):
        if words:
            pid, server = self.server(words[1:])
            if not server:
                return [f"Server {pid} not found"] * 2 + [""]
            chosen = [server]
        else:
            chosen = self.servers
        if not chosen:
            return ["Server not found"]
        row = "{:<10}{:<10}{:<15}{:<42}{:<15}{:<15}".format
        rows = [row("PID", "ID", "SERVER", "DEVICE", "NAMESPACE", "COMMAND")]
        for one in chosen:
            for client, devices in one.clients.items():
                space = os.readlink(f"/proc/{client}/ns/pid")[5:-1]
                with open(f"/proc/{client}/cmdline") as f:
                    command = f.read().split("\0")[0]
                rows += [row(client, 0, one.pid, device, space, command) for device in devices]
        return rows

    def do_start_server(self, front, words):
        if len(words) < 2 or words[0] != "-uid":
            return ["A user id (UID) is required to start a new server"]
        if self.fronts[front] not in (0, os.geteuid()):
            return [f"Insufficient privileges for UID {self.fronts[front]}"]
        if not self.servers:
            self.start(int(words[1]))
        return []

    def do_shutdown_server(self, front, words):
        pid, server = self.server(words)
        if not server:
            return [f"Server {pid} not found"]
        server.end(now="-f" in words)
        return []

    def do_terminate_client(self, front, words):
        pid, server = self.server(words)
        if not server:
            return [f"Server {pid} not found", f"Server {pid} not found!", "1"]
        return ["0"]

    def do_get_default_active_thread_percentage(self, front, words):
        return [f"{self.percentage:.1f}"]

    def do_set_default_active_thread_percentage(self, front, words):
        value = float(words[0])
        if 0 < value <= 100:
            self.percentage = value
        return [f"{self.percentage:.1f}"]

    def do_get_default_device_pinned_mem_limit(self, front, words):
        return [self.limits[words[0]]] if words[0] in self.limits else []

    def do_set_default_device_pinned_mem_limit(self, front, words):
        self.limits[words[0]] = words[1]
        return []

    def do_get_default_client_priority(self, front, words):
        return [str(self.priority)]

    def do_quit(self, front, words):
        if self.fronts[front] not in (0, os.geteuid()):
            return ["Not enough privilege to execute quit command"]
        limit = FOREVER
        if words[:1] == ["-t"]:
            limit = time.monotonic() + int(words[1])
            self.say(f"quit command issued with timeout of {words[1]}")
        self.quitting = (front, limit)
        for server in self.servers:
            server.end(now=False)
        return None


def background():
    """Start the daemon in the background; return after it listens."""
    reading, writing = os.pipe()
    if os.fork():
        os.close(writing)
        said = os.read(reading, 1 << 10).decode()
        if said != "listens":
            print(said, end="")
            sys.exit(1)
        sys.exit(0)
    os.close(reading)
    os.setsid()
    if os.fork():
        os._exit(0)
    with open(f"{LOGS}/control.log", "a") as log, open(f"{LOGS}/server.log", "a"):
        running = Daemon(log).run()
        os.dup2(writing, 1)  # what it says before it listens is for the caller
        next(running)
        os.write(writing, b"listens")
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        os.close(writing)
        next(running)


def foreground():
    for _ in Daemon(sys.stdout).run():
        pass
