"""The MPS control daemons of a keeper (`mps_keeper.py`): their directories, start, answers, end."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Callable, Collection, Iterable

from .processes import (
    PR_SET_PDEATHSIG,
    Spawner,
    all_pids,
    children,
    prctl,
    program,
    signal_all,
    status_of,
    user_name,
    variable,
)

ANSWER_LIMIT = 5.0  # seconds for one command; a daemon that takes longer counts as dead
START_LIMIT = 15.0  # seconds until a new daemon answers, including the end of an older one
SERVER_LIMIT = 15.0  # seconds until its server is ready; it initialises the GPU first
LISTED_LIMIT = 5.0  # seconds until a server that was started is listed, unless it fails
KILL_LIMIT = 5.0
QUIT = 1  # seconds that servers, which are unused by then, have to end by themselves
LONGEST = 106  # bytes in the path of a daemon's sockets
TICK = 0.02
NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP)  # flock(2) on Lustre without the option flock
ACTIVE = "ACTIVE"  # a server that takes clients
PIPES = "CUDA_MPS_PIPE_DIRECTORY"
NAME = "nvidia-cuda-mps"  # begins the names of daemons, servers and front ends


class MpsError(Exception):
    """A problem with MPS, in one line for the user."""


# Directories


def make(path: str) -> None:
    """Make a directory that only this user can enter, or accept one that is there."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        found = os.lstat(path)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise MpsError(
                f"{path} is in the way: it is not a directory of this user. Remove it, or let "
                "SLURM_TMPDIR or TMPDIR name a directory of your own"
            ) from None
        os.chmod(path, 0o700)


def enter(places: Iterable[str], name: str) -> tuple[str, int]:
    """Make the job's directory in the first place that can have it. Return (path, lock). All agents
    of the job on this node find the same directory.
    """
    taken, why = "", "its path would be too long"
    for place in places:
        path = f"{place}/{name}"
        if len(f"{path}/12345678/pipe/control_privileged") > LONGEST:
            continue
        try:
            return path, _hold(path)
        except MpsError as e:  # somebody else may have made it on purpose
            taken = taken or str(e)
        except OSError as e:
            why = str(e.strerror)
    raise MpsError(taken or f"cannot make a directory {name} in {' or '.join(places)}: {why}")


def _hold(path: str) -> int:
    """Mark the directory as used while the descriptor is open. Several keepers may do so."""
    while True:
        make(path)
        try:
            lock = _open(f"{path}/lock")
        except FileNotFoundError:  # removed by its last keeper, at this moment
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_SH)
        except OSError as e:
            os.close(lock)
            if e.errno in NO_LOCKS:  # so no keeper can use this directory
                shutil.rmtree(path, ignore_errors=True)
            raise
        if _same(lock, f"{path}/lock"):
            return lock
        os.close(lock)


def leave(path: str, lock: int) -> None:
    """Remove the directory, if this is the last keeper of the job on this node."""
    for _ in range(3):  # others hold the lock for a moment, to see whether it is free
        if _alone(lock):
            shutil.rmtree(path, ignore_errors=True)
            break
        time.sleep(TICK)
    os.close(lock)


def sweep(places: Iterable[str], prefix: str) -> list[str]:
    """End the daemons and remove the directories that killed keepers have left behind. Return the
    names."""
    swept = []
    for place in places:
        try:
            names = [name for name in os.listdir(place) if name.startswith(prefix)]
        except OSError:
            continue
        for name in names:
            path = f"{place}/{name}"
            try:
                found = os.lstat(path)
                if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
                    continue
                lock = _open(f"{path}/lock")
            except OSError:
                continue
            if _alone(lock) and _same(lock, f"{path}/lock") and end_users(path):
                shutil.rmtree(path, ignore_errors=True)
                swept.append(name)
            os.close(lock)
    return swept


def _open(path: str) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)


def _alone(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # another keeper holds it, or this file system has no locks
        return False
    return True


def _same(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.lstat(path))
    except FileNotFoundError:
        return False


# Processes


def users(directory: str) -> list[int]:
    """Return the pids of MPS's own processes whose pipes are in a directory."""
    mps = (pid for pid in all_pids() if program(pid).startswith(NAME))
    return [pid for pid in mps if (variable(pid, PIPES) or "").startswith(f"{directory}/")]


def user_of(pid: str) -> int | None:
    """Return the uid of an MPS process; None if no MPS process here has this pid."""
    uids = status_of(pid).get(b"Uid", b"").split()
    return int(uids[0]) if uids and program(pid).startswith(NAME) else None


def end_users(directory: str) -> bool:
    """Send SIGKILL to the `users` of a directory until none is left. Return whether none is."""
    limit = time.monotonic() + KILL_LIMIT
    while True:
        left = users(directory)
        signal_all(left, signal.SIGKILL)
        for pid in children():  # the servers of a daemon that died are ours now
            os.waitpid(pid, os.WNOHANG)
        if not left or time.monotonic() > limit:
            return not left
        time.sleep(TICK)


# Daemons


class FrontEnd:
    """A front end to the daemon of one pipe directory. Anybody may have started that daemon."""

    def __init__(self, control: str, pipes: str) -> None:
        self.control = control
        self.pipes = pipes

    def begin(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self.control],
            env={**os.environ, PIPES: self.pipes},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,  # not mixed with the answer, which is compared exactly
            text=True,
            errors="replace",
            preexec_fn=lambda: prctl(PR_SET_PDEATHSIG, signal.SIGKILL),
        )

    def ask(self, command: str) -> list[str] | None:
        """Return the lines of the answer; None if nobody answers, or the kernel grants no process
        that could ask."""
        try:
            process = self.begin()
        except OSError:
            return None
        with process:
            try:
                out, err = process.communicate(f"{command}\n", timeout=ANSWER_LIMIT)
            except subprocess.TimeoutExpired:
                process.kill()
                return None
        return None if process.returncode else (out or err).split("\n")[:-1]

    def servers(self) -> list[str] | None:
        answer = self.ask("get_server_list")
        return None if answer is None else [line for line in answer if line.isdecimal()]

    def state(self, server: str) -> str:
        """Return the state of a server; "" if the driver does not report it, as those up to 535."""
        state = "".join(self.ask(f"get_server_status {server}") or ["unknown"])
        return "" if state.startswith("Unknown command") else state

    def another_user(self) -> tuple[str, int] | None:
        """Return (name, pid of the server) of another user whom the daemon serves now; None without
        one.

        A daemon takes one user at a time: clients of the next wait until the last client of this
        one has ended. A server of root may serve all users. In a container with its own pids,
        nothing is known.
        """
        for server in self.servers() or ():
            uid = user_of(server)
            if uid is None or uid in (0, os.geteuid()):
                continue
            if self.ask(f"get_client_list {server}"):
                return user_name(uid), int(server)
        return None

    def reports_our_pids(self) -> bool:
        """Return whether it reports pids of this container, not those outside."""
        return all(user_of(server) is not None for server in self.servers() or ())

    def clients(self) -> set[int] | None:
        """Return the pids of the clients; None if nobody answers."""
        servers = self.servers()
        if servers is None:
            return None
        answers = [self.ask(f"get_client_list {server}") or () for server in servers]
        return {int(line) for lines in answers for line in lines if line.isdecimal()}


class MpsDaemon:
    """A daemon that this process starts for one group of GPUs, in a directory of its own."""

    def __init__(self, control: str, directory: str, uuids: list[str], spawner: Spawner) -> None:
        self.directory = directory
        self.uuids = uuids
        self.spawner = spawner
        self.pipes = f"{directory}/pipe"
        self.log = f"{directory}/log/control.log"
        self.front = FrontEnd(control, self.pipes)
        self.pid = 0
        self.owner: int | None = None  # a lock: only one keeper at a time may have a daemon here

    def alive(self) -> bool:
        try:
            return bool(self.pid) and os.waitpid(self.pid, os.WNOHANG) == (0, 0)
        except ChildProcessError:
            return False

    def start(self, pause: Callable[[float], None]) -> None:
        limit = time.monotonic() + START_LIMIT
        names = ",".join(self.uuids)
        if self.owner is None:
            self.owner = _open(f"{self.directory}/owner")
        while not _alone(self.owner):
            if time.monotonic() > limit:
                raise MpsError(f"another agent of this job still has an MPS daemon for {names}")
            pause(TICK)
        self.clear()
        env = {PIPES: self.pipes, "CUDA_MPS_LOG_DIRECTORY": os.path.dirname(self.log)}
        environ = os.environ | env | {"CUDA_VISIBLE_DEVICES": names}
        self.pid = self.spawner.spawn([self.front.control, "-f"], environ, self.log, self.log)
        while not os.path.exists(f"{self.pipes}/control") or self.front.servers() is None:
            if not self.alive() or time.monotonic() > limit:
                raise MpsError(f"the MPS daemon for {names} does not start: {last_line(self.log)}")
            pause(TICK)

    def clear(self) -> None:
        """End processes that still use the directories, and empty these."""
        if not end_users(self.directory):
            raise MpsError(f"processes of MPS in {self.directory} cannot be killed")
        shutil.rmtree(self.pipes, ignore_errors=True)
        for path in (self.pipes, os.path.dirname(self.log)):
            make(path)

    def start_server(self) -> None:
        """Start this user's server, for which the first client would otherwise have to wait."""
        self.front.ask(f"start_server -uid {os.geteuid()}")

    def await_server(self, pause: Callable[[float], None]) -> None:
        """Wait until the server takes clients: while it initialises, it refuses them.

        https://docs.nvidia.com/deploy/mps/latest/troubleshooting.html
        """
        began, names = time.monotonic(), ",".join(self.uuids)
        while True:
            if (servers := self.front.servers()) is None:
                raise MpsError(f"the MPS daemon for {names} does not answer")
            states = [self.front.state(server) for server in servers]
            if servers and all(state in (ACTIVE, "") for state in states):
                return
            waited = time.monotonic() - began
            if waited > SERVER_LIMIT or (not servers and waited > LISTED_LIMIT):
                why = f"its state is {states[0]}" if states else "there is none"
                raise MpsError(f"the MPS server for {names} does not start: {why}")
            pause(TICK)

    def stamp(self, number: int) -> None:
        """Write a file that shows other keepers that the daemon is ready for a round."""
        with open(f"{self.directory}/ready.new", "w") as f:
            f.write(str(number))
        os.replace(f"{self.directory}/ready.new", f"{self.directory}/ready")


def stop(daemons: Collection[MpsDaemon]) -> list[str]:
    """Ask all daemons to end, at once, then kill them. Return directories still in use."""
    asked: list[subprocess.Popen[str]] = []
    for daemon in daemons:
        if daemon.alive():
            try:
                process = daemon.front.begin()
            except OSError:  # the kernel grants no process: kill the daemon without asking it
                continue
            asked.append(process)
            assert process.stdin is not None, "it is a pipe"
            try:
                process.stdin.write(f"quit -t {QUIT}\n")
                process.stdin.close()
            except BrokenPipeError:
                pass  # it found no daemon
    limit = time.monotonic() + QUIT + ANSWER_LIMIT
    for process in asked:
        with process:
            try:
                process.wait(max(0.0, limit - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
    left = [daemon.directory for daemon in daemons if not end_users(daemon.directory)]
    for daemon in daemons:
        if daemon.owner is not None:
            os.close(daemon.owner)
        daemon.pid, daemon.owner = 0, None
    return left


def ready_for(directory: str) -> int:
    """Return the last round for which a daemon is ready, as its owner has written; -1 if none."""
    try:
        with open(f"{directory}/ready") as f:
            return int(f.read())
    except FileNotFoundError:
        return -1


def last_line(path: str) -> str:
    """Return the last line of a daemon's log, without the time."""
    try:
        with open(path, errors="replace") as f:
            lines = f.read().split("\n")
    except OSError:
        lines = []
    last = next((line for line in reversed(lines) if line.strip()), "its log is empty")
    return last.partition("] ")[2] if last.startswith("[") else last
