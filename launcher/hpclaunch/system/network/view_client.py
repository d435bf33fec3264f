"""Asks the agents of this user on this machine (`view_socket.py`).

`main` does so on a node of a job, with nothing but the standard library.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import sys
import time
from typing import Any

from hpclaunch.worker.json_lines import in_pieces

from ..shared import bounded_json
from .view_socket import CONNECTION, LOOK, content_of, name_of, receive_own

LIMIT = 3.0  # seconds for all answers; a stopped agent gives none
PATIENCE, AGAIN = 2.5, 0.3  # seconds in all, and between two looks
_KIND = socket.SOCK_DGRAM | socket.SOCK_NONBLOCK


def sockets() -> list[bytes]:
    """Return the names of the sockets of this user's agents, and of any others of such a name: the
    kernel does not list their owners.
    """
    begin = b"@" + name_of(os.geteuid())  # for a null byte, see unix(7)
    with open("/proc/self/net/unix", "rb") as f:
        # A name may contain line breaks, so there may be blank lines.
        words = {word for line in f for word in line.split()[-1:]}
    return sorted(b"\0" + word[1:] for word in words if word.startswith(begin))


def ask(question: bytes, names: list[bytes], within: float | None = None) -> dict[bytes, bytes]:
    """Return the answers that arrived in time, by name: the bytes of their files. `within` replaces
    LIMIT, in seconds.

    Each answer has a connection of its own. So only the agent that was asked can answer, and only
    this process gets the answer. A socket that does not read its questions blocks no others.
    """
    limit = time.monotonic() + (LIMIT if within is None else within)
    answers: dict[bytes, bytes] = {}
    with contextlib.ExitStack() as ends, selectors.PollSelector() as selector:
        for name in names:
            with contextlib.suppress(OSError):  # it has ended, or no descriptor is left
                end = ends.enter_context(socket.socket(socket.AF_UNIX, _KIND))
                end.connect(name)
                selector.register(end, selectors.EVENT_WRITE, (name, end))
        while selector.get_map() and (left := limit - time.monotonic()) > 0:
            for key, ready in selector.select(left):
                name, end = key.data
                try:
                    if ready == selectors.EVENT_WRITE:
                        connection = ends.enter_context(_sent(question, end))
                        selector.register(connection, selectors.EVENT_READ, (name, connection))
                    elif (data := _answer(end)) is not None:
                        answers[name] = data
                except BlockingIOError:
                    continue  # its queue was filled by others just now
                except OSError:
                    pass  # it has ended, or does not read
                selector.unregister(end)
                end.close()
    return answers


def _sent(question: bytes, end: socket.socket) -> socket.socket:
    """Send a question, and return the connection for its answer. Raises OSError."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, CONNECTION)
    with theirs:
        try:
            ours.setblocking(False)
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            socket.send_fds(end, [question], [theirs.fileno()])
        except OSError:
            ours.close()
            raise
    return ours


def _answer(end: socket.socket) -> bytes | None:
    """Return the content of the file in an answer; None if another user has sent it."""
    _, fds = receive_own(end, 1)
    contents = [content_of(fd) for fd in fds]
    return contents[-1] if contents else None


def looked(which: str | int, names: list[bytes] | None = None) -> list[tuple[bytes, bytes]]:
    """Return the agents here, each with its answer. `which`: "" for all of them, the name of a
    launch or of a Slurm job, or a pid. `names`: ask only these sockets.
    """
    found = []
    for name, data in sorted(ask(LOOK, sockets() if names is None else names).items()):
        launch = _launch(data)
        if launch and which in ("", launch["name"], launch["slurm_id"], launch["pid"]):
            found.append((name, data))
    return found


def _launch(data: bytes) -> dict[str, Any]:
    """Return the launch in an answer; {} if there is none: another version, or another program of
    this user, may answer anything.
    """
    try:
        launch = unpacked(data)
    except ValueError:
        return {}
    is_one = isinstance(launch, dict) and {"name", "slurm_id", "pid", "job"} <= launch.keys()
    return launch if is_one else {}


def unpacked(data: bytes) -> Any:
    """Return the value that `shared/packing.py` has packed. Raises ValueError."""
    value = bounded_json.loads(data.decode())
    return bounded_json.loads(value) if isinstance(value, str) else value


def looked_patiently(which: str | int) -> list[tuple[bytes, bytes]]:
    """Return what `looked` does, once the agents have collected the data that only viewers need."""
    found = looked(which)
    limit = time.monotonic() + PATIENCE
    while time.monotonic() < limit and not all(_is_complete(data) for _, data in found):
        time.sleep(AGAIN)
        found = looked(which, [name for name, _ in found])  # others may not answer at all
    return found


def _is_complete(data: bytes) -> bool:
    """Return whether an answer is complete. Those of members and of other versions always are."""
    job = unpacked(data)["job"]
    try:
        lacks_gpus = any(agent["gpus_of"] and not agent["gpus"] for agent in job["agents"])
        return bool(job["is_complete"]) and not lacks_gpus
    except (KeyError, TypeError):
        return True


def request(word: str, which: str | int) -> list[str]:
    """Send a request to all launches that are led from here and have this name or pid. Return why
    each refuses it; "" for one that grants it.
    """
    leading = [name for name, data in looked(which) if unpacked(data)["job"] is not None]
    return [data.decode(errors="replace") for data in ask(word.encode(), leading).values()]


def main(mark: str, which: str, word: str, pause: str) -> None:
    """Print the answers in JSON: the snapshots of agents, or why a request cannot be granted. With
    a PAUSE, ask again and again.

    Each line begins with MARK and the name of this host. "+" is followed by a part of an answer;
    "." ends an answer, and "=" all answers of a look.
    """
    begin = f"{mark} {socket.gethostname()}"
    look = looked_patiently
    while True:
        if word == LOOK.decode():
            answers = [data.decode() for _, data in look(which)]
        else:
            answers = [json.dumps(why) for why in request(word, which)]
        for answer in answers:
            sys.stdout.writelines(in_pieces(f"{begin} +", answer))
            sys.stdout.write(f"{begin} .\n")
        sys.stdout.write(f"{begin} =\n")
        sys.stdout.flush()
        if not float(pause):
            return
        time.sleep(float(pause))
        look = looked
