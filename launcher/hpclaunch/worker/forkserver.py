"""The fork server: starts, watches and ends everything that a round runs on one node.

    python -I -S forkserver.py FD SPARED BLOCKED

FD is one end of a stream socket pair to the agent; both sides write one JSON object per line.
Signals ("12,25", may be empty) to be deaf to beside the usual ones, and those that the user had
blocked, which workers inherit.

    from the agent                                 to the agent
    {"op": "listen", "loopback": BOOL}             {"event": "listening", "port": P}
    {"op": "store", "argv": [...], "err": PATH}    {"event": "store-exit", "code": C}
    {"op": "start", "store": BOOL, "env": {...},   {"event": "started", "rank": R, "pid": P}
        "workers": [{"rank", "argv", "env",        {"event": "exit", "rank": R, "code": C,
        "out", "err", "cpus"}, ...]}                   "signal": S}
                                                   {"event": "gone"}
    {"op": "signal", "signum": S}                  {"event": "unhandled", "signum": S, "ranks": []}
    {"op": "stop"}   SIGTERM to process groups
    {"op": "kill"}   SIGKILL to everything

Law: nothing started here outlives this process or the agent. The alive end of the socket is the
agent's life: at its end of file everything is killed. Should this process be killed itself, its
children die by their parent-death signal. It is a subreaper, so that a grandchild whose parent is
gone becomes its own child, whatever session it moved to: "no children" means nothing is left.

It starts workers as fresh interpreters. It is one thread without torch, CUDA or ZeroMQ.
"""

import ctypes
import errno
import json
import os
import select
import signal
import socket
import sys
import time

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
SWEEP_LIMIT = 5.0  # seconds; the agent's own limit decides what happens after that
SPARED = (  # sent by scancel or a terminal to every process: only the agent may act on them
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)

_libc = ctypes.CDLL(None, use_errno=True)


def prctl(option, value):
    if _libc.prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def children():
    """The pids of this process's children, adopted ones included."""
    me = os.getpid()
    try:
        with open(f"/proc/{me}/task/{me}/children") as f:
            return [int(pid) for pid in f.read().split()]
    except FileNotFoundError:  # a kernel built without CONFIG_PROC_CHILDREN
        return [
            pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _ppid(pid) == me
        ]


def _ppid(pid):
    try:
        with open(f"/proc/{pid}/stat") as f:
            return int(f.read().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def catches(pid, signum):
    """Whether a process has a handler for a signal, or ignores it."""
    masks = 0
    try:
        with open(f"/proc/{pid}/status") as f:
            for line in f:
                if line.startswith(("SigCgt:", "SigIgn:")):
                    masks |= int(line.split()[1], 16)
    except OSError:
        return False
    return bool(masks >> (signum - 1) & 1)


def numbers(text):
    return {int(number) for number in text.split(",") if number}


def exit_code(status):
    """(code as a shell has it, signal or 0) of a wait status."""
    code = os.waitstatus_to_exitcode(status)
    return (code, 0) if code >= 0 else (128 - code, -code)


class ForkServer:
    def __init__(self, channel, spared, blocked):
        self.channel = channel
        self.workers = {}  # pid -> rank, the living ones of the round
        self.running = False  # a round was started and not everything of it is gone
        self.listener: socket.socket | None = None
        self.store = None  # (pid, socket) of the process that holds the rounds' stores
        self.originals = {s: signal.getsignal(s) for s in spared}
        for s in spared:
            signal.signal(s, signal.SIG_IGN)
        self.blocked = blocked
        # The agent blocked them for the moments until here.
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        self.wakeup, wakeup_end = socket.socketpair()
        self.wakeup.setblocking(False)
        wakeup_end.setblocking(False)
        self._wakeup_end = wakeup_end
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakeup_end.fileno(), warn_on_full_buffer=False)
        prctl(PR_SET_CHILD_SUBREAPER, 1)

    def run(self):
        poll = select.poll()
        poll.register(self.channel, select.POLLIN)
        poll.register(self.wakeup, select.POLLIN)
        buffer = b""
        while True:
            for fd, _ in poll.poll():
                if fd == self.wakeup.fileno():
                    self.drain_wakeup()
                    self.reap()
                    self.settle()
                    continue
                try:
                    data = self.channel.recv(1 << 16)
                except ConnectionResetError:  # the agent died without reading our last words
                    return
                if not data:
                    return
                *lines, buffer = (buffer + data).split(b"\n")
                for line in lines:
                    request = json.loads(line)
                    getattr(self, "on_" + request.pop("op"))(**request)

    def tell(self, event, **fields):
        try:
            self.channel.sendall(json.dumps({"event": event, **fields}).encode() + b"\n")
        except BrokenPipeError:
            pass  # the agent is gone: run() sees it too

    def drain_wakeup(self):
        try:
            while self.wakeup.recv(512):
                pass
        except BlockingIOError:
            pass

    # Requests

    def on_listen(self, loopback):
        """A fresh port for every round: a store used twice hands out the dead of the last one."""
        if self.listener is not None:
            self.listener.close()
        if loopback:
            self.listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
        elif socket.has_dualstack_ipv6():
            family = socket.AF_INET6
            self.listener = socket.create_server(
                ("", 0), family=family, backlog=4096, dualstack_ipv6=True
            )
        else:
            self.listener = socket.create_server(("", 0), backlog=4096)
        self.tell("listening", port=self.listener.getsockname()[1])

    def on_store(self, argv, err):
        """Start the process that holds the stores, ahead of need: it takes long to import torch."""
        if self.store is not None:
            return
        ours, theirs = socket.socketpair()
        os.set_inheritable(theirs.fileno(), True)
        # It stays deaf to what scancel sends to every process: workers that save their state when
        # they are told to stop still need it.
        pid = self.spawn([*argv, str(theirs.fileno())], os.environ, err, err, deaf=True)
        theirs.close()
        self.store = (pid, ours)

    def on_start(self, workers, env, store):
        assert self.listener is not None, "a round starts after a listen"
        if store and self.store is not None:
            try:
                socket.send_fds(self.store[1], [b"."], [self.listener.fileno()])
            except OSError:
                pass  # it is dead: reap() tells
        self.listener.close()
        self.listener = None
        shared = os.environ | env
        for worker in workers:
            environ = shared | worker["env"]
            pid = self.spawn(
                worker["argv"], environ, worker["out"], worker["err"], cpus=worker["cpus"]
            )
            self.workers[pid] = worker["rank"]
            self.tell("started", rank=worker["rank"], pid=pid)
        self.running = True

    def on_signal(self, signum):
        """Pass a signal on to those workers that it would not kill."""
        deaf = []
        for pid, rank in self.workers.items():
            if catches(pid, signum):
                os.kill(pid, signum)
            else:
                deaf.append(rank)
        if deaf:
            self.tell("unhandled", signum=signum, ranks=deaf)

    def on_stop(self):
        for pid in self.workers:
            for signum in (signal.SIGTERM, signal.SIGCONT):
                try:
                    os.killpg(pid, signum)
                except ProcessLookupError:
                    pass

    def on_kill(self):
        self.sweep()
        self.settle()

    # Processes

    def spawn(self, argv, environ, out, err, deaf=False, cpus=()):
        """Fork and exec; a program that cannot be started ends as a shell says: 126 or 127.

        It has the signal handlers that the agent was started with, or is `deaf` as we are.
        """
        parent = os.getpid()
        pid = os.fork()
        if pid:
            return pid
        try:
            os.setsid()
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            os.dup2(os.open(out, flags, 0o600), 1)
            os.dup2(os.open(err, flags, 0o600), 2)
            for s, handler in () if deaf else self.originals.items():
                signal.signal(s, handler)
            for s in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them for itself
                signal.signal(s, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, self.blocked)
            if cpus:
                try:
                    os.sched_setaffinity(0, cpus)
                except OSError:
                    pass  # the cgroup has shrunk meanwhile: its own CPUs are good enough
            os.execvpe(argv[0], argv, environ)
        except OSError as e:
            os.write(2, f"hpclaunch: cannot start {argv[0]}: {e.strerror}: {e.filename}\n".encode())
            os._exit(127 if e.errno == errno.ENOENT else 126)
        finally:
            os._exit(126)

    def reap(self):
        """Wait for whatever ended. Every child of this process is its own, so -1 is right here."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            code, signum = exit_code(status)
            if pid in self.workers:
                rank = self.workers.pop(pid)
                self.tell("exit", rank=rank, code=code, signal=signum)
            elif self.store is not None and pid == self.store[0]:
                self.store[1].close()
                self.store = None
                self.tell("store-exit", code=code)

    def settle(self):
        """Once all workers of the round have ended, whatever they left behind goes as well."""
        if self.running and not self.workers and self.sweep():
            self.running = False
            self.tell("gone")

    def sweep(self, spare_store=True):
        """SIGKILL until no child is left but the store; grandchildren become ours on the way.

        Returns whether all are gone: a process inside a hung system call cannot be killed, and its
        end, should it come, is a SIGCHLD like any other.
        """
        limit = time.monotonic() + SWEEP_LIMIT
        while time.monotonic() < limit:
            spared = {self.store[0]} if spare_store and self.store is not None else set()
            living = [pid for pid in children() if pid not in spared]
            if not living:
                return True
            for pid in living:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            select.select([self.wakeup], [], [], 0.05)
            self.drain_wakeup()
            self.reap()
        return False


def main(fd, spared, blocked):
    channel = socket.socket(fileno=fd)
    channel.set_inheritable(False)  # it came to us by inheritance; no worker may have it
    server = ForkServer(channel, {*SPARED, *numbers(spared)}, numbers(blocked))
    try:
        server.run()
    finally:
        # The agent is gone, or this process is at fault: either way nothing may stay.
        server.sweep(spare_store=False)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
