"""What makes a process of a test a CUDA process, as far as MPS can tell.

`connect` stands for the first call into CUDA, `fault` for a kernel that writes to an illegal
address, `synchronize` for any later call. As a program: connects, says so, does what the words on
its standard input say, and ends with that.
"""

import ctypes
import json
import os
import select
import socket
import sys
import threading

_held = []  # for the life of this process


class CudaError(Exception):
    pass


def connect():
    """Become a client of MPS and return True; where no daemon answers CUDA runs without."""
    threading.Thread(target=_handle_events, daemon=True).start()
    pipes = os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or "/tmp/nvidia-mps"
    daemon = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        daemon.connect(f"{pipes}/control")
    except OSError:
        return False
    devices = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    daemon.send(json.dumps({"devices": devices}).encode())
    answer = _receive(daemon)
    if "error" in answer:
        raise CudaError(answer["error"])
    _held.append(daemon)
    return True


def _handle_events(name=b"cuda-EvtHandlr"):
    """The thread by which a process with a CUDA context is known."""
    ctypes.CDLL(None).prctl(15, name, 0, 0, 0)  # PR_SET_NAME
    threading.Event().wait()


def fault():
    """Every client of the server gets the error, this one too."""
    _held[-1].send(b"fault")
    select.select([_held[-1]], [], [])
    synchronize()


def synchronize():
    if select.select([_held[-1]], [], [], 0)[0]:
        raise CudaError(_receive(_held[-1]).get("error"))


def _receive(connection):
    data = connection.recv(1 << 16)
    if not data:  # the server is gone
        return {"error": "CUDA_ERROR_MPS_RPC_FAILURE"}
    return json.loads(data)


def say(words):
    sys.stdout.write(f"{words}\n")
    sys.stdout.flush()


def main():
    try:
        say("client" if connect() else "no client")
        for line in sys.stdin:
            {"fault": fault, "synchronize": synchronize}[line.strip()]()
            say("done")
    except CudaError as e:
        say(e)
        sys.exit(1)


if __name__ == "__main__":
    main()
