"""An MPS daemon that is not ours, and whether workers can use it. The errand service runs this,
since a daemon may hang: standard library only.
"""

from __future__ import annotations

import os
import socket
import struct
import subprocess

from hpclaunch.system.shared.errands import AskMps, MpsAnswered
from hpclaunch.worker.processes import user_name

PIPES = "CUDA_MPS_PIPE_DIRECTORY"
LIMIT = 3.0  # seconds for an answer
PEER = struct.Struct("3i")  # of SO_PEERCRED: pid, uid, gid


def ask(errand: AskMps) -> MpsAnswered:
    """Run the errand AskMps."""
    number, pipes = errand.number, errand.pipes
    if stranger := _stranger(pipes):
        return MpsAnswered(number, "", f"the MPS daemon at {pipes} is not used: {stranger}")
    return MpsAnswered(number, pipes if _answers(errand.control, pipes) else "", "")


def _stranger(pipes: str) -> str:
    """Return which part of a daemon belongs to a user other than root and this one; "" if none
    does. Workers must not trust the daemon of another user.
    """
    try:
        found = {path: os.stat(path).st_uid for path in (pipes, f"{pipes}/control")}
    except OSError:  # it has just ended
        return ""
    for what, uid in found.items():
        if uid not in (0, os.geteuid()):
            return f"{what} belongs to {user_name(uid)}"
    listener = _listener(f"{pipes}/control")
    if listener is None or listener in (0, os.geteuid()):
        return ""
    return f"its process belongs to {user_name(listener)}"


def _listener(path: str) -> int | None:
    """Return the user of the process that listens on a socket; None if that is not known."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(LIMIT)
        try:
            connection.connect(path)
            peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size)
        except OSError:
            return None
    return int(PEER.unpack(peer)[1])


def _answers(control: str, pipes: str) -> bool:
    try:
        asked = subprocess.run(
            [control], input=b"get_server_list\n", env={**os.environ, PIPES: pipes},
            capture_output=True, timeout=LIMIT, check=False,
        )  # fmt: skip
    except (subprocess.TimeoutExpired, OSError):
        return False
    return asked.returncode == 0
