"""Hosts within one machine: own network, name, processes and mounts, but shared files.

A host lives as long as its process 1. The kernel ends that process, and with it all others on the
host, when its parent ends: no process survives the tests, however they end. Needs root.
"""

from __future__ import annotations

import ipaddress
import os
import pwd
import re
import shlex
import signal
import stat
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

LIMIT = 300.0  # seconds for a command, or until something happens; far more than any takes
TOOLS = ("ip", "nft", "fusermount3", "nsenter", "setpriv", "unshare", "mount", "hostname", "bash")
NETWORK = ipaddress.ip_network("10.78.0.0/24")
SECOND_NETWORK = ipaddress.ip_network("10.79.0.0/24")
SWITCH, OTHER_SWITCH = "br0", "br1"
_UNSHARE = (
    *("setpriv", "--pdeathsig", "KILL", "--"),
    *("unshare", "--net", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"),
)


def why_no_firewall() -> str:
    """Return why hosts cannot have a firewall, or ""."""
    trial = ["unshare", "--net", "nft", "list", "ruleset"]
    done = subprocess.run(trial, capture_output=True, text=True)
    return done.stderr.strip() if done.returncode else ""


@dataclass(frozen=True, slots=True)
class Process:
    """A living process on a host; `pid` is that in the tests' namespace."""

    pid: int
    host: str
    uid: int
    command: str

    def kill(self, signum: int = signal.SIGKILL) -> None:
        os.kill(self.pid, signum)

    @property
    def is_stopped(self) -> bool:
        """True while the process is stopped by SIGSTOP."""
        try:
            return psutil.Process(self.pid).status() == psutil.STATUS_STOPPED
        except psutil.NoSuchProcess:
            return False


class Host:
    """A host without a link; `connect` or `become_switch` give it one."""

    def __init__(self, name: str, number: int, setup: Sequence[str]) -> None:
        """`setup` are shell commands to run as root on the new host; `number` ends its address."""
        self.name = name
        self.address, self.second_address = str(NETWORK[number]), str(SECOND_NETWORK[number])
        lines = [
            "set -e",
            "umask 022",
            f"hostname {name}",
            "ip link set lo up",
            "mount -t tmpfs tmpfs /dev/shm",
            *setup,
            "trap '' CHLD",  # ignored from now on, so that the kernel reaps orphans
            "echo ready",
            "exec sleep infinity >/dev/null 2>&1",
        ]
        command = [*_UNSHARE, "bash", "-c", "\n".join(lines)]
        self._parent = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # only the tests receive a Ctrl-C, and then stop the host
        )
        output = self._wait_until_ready()
        children = psutil.Process(self._parent.pid).children()
        if not children:
            self._parent.wait()
            raise RuntimeError(f"cannot start host {name}: {output}")
        self.pid = children[0].pid  # process 1 of the host
        self.space = os.readlink(f"/proc/{self.pid}/ns/pid")

    def _wait_until_ready(self) -> str:
        assert self._parent.stdout is not None, "stdout is a pipe"
        output = ""
        with self._parent.stdout as lines:
            for line in lines:
                if line == "ready\n":
                    break
                output += line
        return output

    def down(self) -> None:
        """End everything on the host at once, as a power failure does."""
        if self._parent.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
            self._parent.wait()

    # The link

    def _net(self, command: str) -> None:
        """Run a command in the host's network, but with the machine's process ids."""
        subprocess.run(["nsenter", "-t", str(self.pid), "-n", *command.split()], check=True)

    def become_switch(self) -> None:
        """Become the host where the links of all others end."""
        for bridge in (SWITCH, OTHER_SWITCH):
            self._net(f"ip link add {bridge} type bridge")
            self._net(f"ip link set {bridge} up")
        self._net(f"ip addr add {self.address}/{NETWORK.prefixlen} dev {SWITCH}")

    def connect(self, switch: Host) -> None:
        self._switch = switch
        self._add_link(f"to-{self.name}", SWITCH, "eth0", self.address)

    def _add_link(self, port: str, bridge: str, interface: str, address: str) -> None:
        self._switch._net(f"ip link add {port} type veth peer name {interface} netns {self.pid}")
        self._switch._net(f"ip link set {port} master {bridge} up")
        self._net(f"ip addr add {address}/{NETWORK.prefixlen} dev {interface}")
        self._net(f"ip link set {interface} up")

    @contextmanager
    def second_link(self) -> Iterator[None]:
        """Connect this host to the second network with the interface ib0."""
        self._add_link(f"ib-{self.name}", OTHER_SWITCH, "ib0", self.second_address)
        try:
            yield
        finally:
            self._net("ip link del ib0")

    def cut(self) -> None:
        """Cut the network: no packet arrives or leaves, and no connection is closed."""
        self._switch._net(f"ip link set to-{self.name} down")

    def heal(self) -> None:
        self._switch._net(f"ip link set to-{self.name} up")

    def move(self, bridge: str) -> None:
        """Move the link to another switch, whose hosts can reach only one another."""
        self._switch._net(f"ip link set to-{self.name} master {bridge}")

    @contextmanager
    def without_network(self) -> Iterator[None]:
        self.cut()
        try:
            yield
        finally:
            self.heal()

    @contextmanager
    def refusing(self, others: Collection[str], ports: str) -> Iterator[None]:
        """Reset, by a firewall, TCP packets of these addresses from or to these ports."""
        senders = f"ip saddr {{ {', '.join(others)} }}"
        reset = "tcp flags & rst == 0 reject with tcp reset;"
        chain = "type filter hook input priority 0;"
        chain += "".join(f" {senders} tcp {end} {ports} {reset}" for end in ("sport", "dport"))
        self._net(f"nft table inet refuse {{ chain input {{ {chain} }}; }}")
        try:
            yield
        finally:
            self._net("nft delete table inet refuse")

    # Processes

    def command(self, argv: Sequence[str], cwd: Path | str = "/", user: str = "") -> list[str]:
        """Return the command line that runs `argv` on this host, as `user` if given."""
        enter = ["nsenter", "-t", str(self.pid), "-n", "-u", "-m", "-p", "--"]
        if user:
            entry = pwd.getpwnam(user)
            enter += ["setpriv", f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}"]
            enter += ["--clear-groups", "--"]
        return [*enter, "env", "-C", str(cwd), *argv]

    def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path | str = "/",
        user: str = "",
        stdin: str = "",
    ) -> str:
        """Run a command; return its output. AssertionError with the output if it fails."""
        done = subprocess.run(
            self.command(argv, cwd, user),
            env=env,
            input=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT,
        )
        message = f"{shlex.join(argv)} on {self.name} ended with {done.returncode}: {done.stdout}"
        assert done.returncode == 0, message
        return done.stdout


def processes(where: Sequence[Host], pattern: str = "") -> list[Process]:
    """Return the processes on these hosts whose command line matches, host by host.

    Zombies are left out, since they do nothing.
    """
    spaces = {host.space: host for host in where}
    found: dict[str, list[Process]] = {host.name: [] for host in where}
    for number in filter(str.isdigit, os.listdir("/proc")):
        entry = Path("/proc", number)
        try:
            host = spaces.get(os.readlink(f"/proc/{number}/ns/pid"))
            if host is None or int(number) == host.pid:
                continue
            state = (entry / "stat").read_bytes().rpartition(b")")[2].split()[0].decode()
            command = os.fsdecode((entry / "cmdline").read_bytes()).replace("\0", " ").strip()
            if (entry / "comm").read_bytes() == b"hpclaunch-torch\n":
                command = f"(template) {command}"  # it shares the workers' command line
            uid = entry.stat().st_uid
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # it has ended, or even root may not inspect it
        if state not in "ZX" and re.search(pattern, command, re.DOTALL):
            found[host.name].append(Process(int(number), host.name, uid, command))
    return [process for each in found.values() for process in each]


def opening(paths: Sequence[Path], aside: Path) -> list[str]:
    """Return shell commands for a host's setup that let every user reach `paths`.

    Other users cannot use a Python or a checkout below a private directory (/root is 0700). On the
    host, such a directory is covered by a public one that contains only our paths.
    """
    away, covers, back = [], [], []
    closed = {path: blocker for path in paths if (blocker := _blocker(path))}
    for number, (path, blocker) in enumerate(closed.items()):
        if any(other in path.parents for other in closed):
            continue  # it is moved together with the other
        spot = aside / str(number)
        there, here, cover = (shlex.quote(str(p)) for p in (path, spot, blocker))
        away += [f"mkdir -p {here}", f"mount --rbind {there} {here}"]
        covers.append(f"mount -t tmpfs -o mode=755 tmpfs {cover}")
        back += [f"mkdir -p {there}", f"mount --move {here} {there}"]
    return [*away, *dict.fromkeys(covers), *back]


def _blocker(path: Path) -> Path | None:
    """Return the outermost directory above `path` that other users cannot enter."""
    for directory in reversed(path.parents):
        if not directory.stat().st_mode & stat.S_IXOTH:
            return directory
    return None
