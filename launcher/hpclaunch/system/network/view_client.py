"""Asks the agents of this user on this machine (`view_socket.py`).

`main` does so within a job on one of its nodes, where Python has nothing but its own library.
"""

from __future__ import annotations

import array
import json
import os
import socket
import sys
import time
from typing import Any

from ..shared import bounded_json
from .view_socket import LOOK, name_of, uid_of

LIMIT = 3.0  # seconds for all answers; a stopped agent gives none
PATIENCE, AGAIN = 2.5, 0.3  # seconds in all, and between two looks
RETRY = 0.05  # seconds between two tries to ask an agent that has too many questions
PIECE = 800  # srun passes on lines of up to 1024 bytes whole; longer ones of two nodes may mix
_SPACE = socket.CMSG_SPACE(12) + socket.CMSG_SPACE(4)  # credentials, and a descriptor


def sockets() -> list[bytes]:
    """The names of the sockets of this user's agents, and of whoever uses such a name."""
    begin = b"@" + name_of(os.geteuid())
    with open("/proc/self/net/unix", "rb") as f:
        words = (line.split()[-1] for line in f if begin in line)
        return sorted({b"\0" + word[1:] for word in words if word.startswith(begin)})


def ask(question: bytes, names: list[bytes], within: float | None = None) -> dict[bytes, bytes]:
    """The answers that came in time, by name: the bytes of their files. `within`: seconds, in place
    of LIMIT.
    """
    within = LIMIT if within is None else within
    answers: dict[bytes, bytes] = {}
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asking:
        asking.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        asking.bind(b"")  # the kernel chooses a name
        limit = time.monotonic() + within
        unasked, waiting = names, set[bytes]()
        while True:
            asked, unasked = _send(asking, question, unasked)
            waiting |= asked
            left = limit - time.monotonic()
            if left <= 0 or not (waiting or unasked):
                break
            asking.settimeout(min(left, RETRY) if unasked else left)
            try:
                _, ancillary, _, sender = asking.recvmsg(8, _SPACE)
            except TimeoutError:
                continue
            data = _content(ancillary)
            if uid_of(ancillary) == os.geteuid() and sender in waiting:
                waiting.discard(sender)
                answers[sender] = data
    return answers


def _send(
    asking: socket.socket, question: bytes, names: list[bytes]
) -> tuple[set[bytes], list[bytes]]:
    """Returns those that have the question, and those that have no room for it yet: to wait for one
    of them would let the time for all the others pass.
    """
    asked, full = set(), []
    asking.settimeout(0)
    for name in names:
        try:
            asking.sendto(question, name)
            asked.add(name)
        except BlockingIOError:
            full.append(name)
        except OSError:
            pass  # it has ended, or does not read
    return asked, full


def _content(ancillary: list[tuple[int, int, bytes]]) -> bytes:
    """Of the file that came with a datagram."""
    data = b""
    for level, kind, rights in ancillary:
        if (level, kind) != (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            continue
        descriptors = array.array("i")
        descriptors.frombytes(rights[: len(rights) - len(rights) % descriptors.itemsize])
        for fd in descriptors:
            with open(fd, "rb") as f:
                f.seek(0)
                data = f.read()
    return data


def looked(which: str | int, names: list[bytes] | None = None) -> list[tuple[bytes, bytes]]:
    """The agents here, each with its answer: all of them (""), or those of the launch, or of the
    Slurm job, with the name `which`, or the one with this pid. `names`: only look at these.
    """
    found = []
    for name, data in sorted(ask(LOOK, sockets() if names is None else names).items()):
        launch = _launch(data)
        if launch and which in ("", launch["name"], launch["slurm_id"], launch["pid"]):
            found.append((name, data))
    return found


def _launch(data: bytes) -> dict[str, Any]:
    """{} if it is none: another version, or another program of this user, may answer anything."""
    try:
        told = unpacked(data)
    except ValueError:
        return {}
    is_one = isinstance(told, dict) and {"name", "slurm_id", "pid", "job"} <= told.keys()
    return told if is_one else {}


def unpacked(data: bytes) -> Any:
    """As `shared/packing.py` has packed it. Raises ValueError."""
    told = bounded_json.loads(data)
    return bounded_json.loads(told) if isinstance(told, str) else told


def looked_patiently(which: str | int) -> list[tuple[bytes, bytes]]:
    """The same, once they know what agents are only asked for when somebody looks."""
    found = looked(which)
    limit = time.monotonic() + PATIENCE
    while time.monotonic() < limit and not all(_is_complete(data) for _, data in found):
        time.sleep(AGAIN)
        found = looked(which, [name for name, _ in found])  # others may not answer at all
    return found


def _is_complete(data: bytes) -> bool:
    """Also what an agent tells that does not lead, or one of another version."""
    job = unpacked(data)["job"]
    try:
        lacks_gpus = any(agent["gpus_of"] and not agent["gpus"] for agent in job["agents"])
        return bool(job["is_complete"]) and not lacks_gpus
    except (KeyError, TypeError):
        return True


def request(word: str, which: str | int) -> list[str]:
    """Ask it of all launches that are led from here and have this name, or this pid: why not, for
    each; "" if it is done.
    """
    leading = [name for name, data in looked(which) if unpacked(data)["job"] is not None]
    return [data.decode() for data in ask(word.encode(), leading).values()]


def main(mark: str, which: str, word: str, pause: str) -> None:
    """Print the answers in JSON: the snapshots of the agents that are looked at, or why a request
    cannot be granted. With a PAUSE, look again and again.

    Each line begins with MARK and the name of this host. Then comes a part of an answer after "+",
    "." after its last part, or "=" after all answers of a look.
    """
    begin = f"{mark} {socket.gethostname()}"
    look = looked_patiently
    while True:
        if word == LOOK.decode():
            answers = [data.decode() for _, data in look(which)]
        else:
            answers = [json.dumps(why) for why in request(word, which)]
        for answer in answers:
            for at in range(0, len(answer), PIECE):
                sys.stdout.write(f"{begin} +{answer[at : at + PIECE]}\n")
            sys.stdout.write(f"{begin} .\n")
        sys.stdout.write(f"{begin} =\n")
        sys.stdout.flush()
        if not float(pause):
            return
        time.sleep(float(pause))
        look = looked
