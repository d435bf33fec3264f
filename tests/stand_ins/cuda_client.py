"""Stand-in for the CUDA runtime as a client of MPS.

`connect` stands for the first CUDA call, `fault` for a kernel that writes to an illegal address,
`synchronize` for any later call. As a program, it connects, prints the result, and runs the
functions that are named on its standard input, until that ends.
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
    """Become a client of MPS; return False if no daemon answers, since CUDA then runs without."""
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
    """Run the thread by which hpclaunch recognises a process with a CUDA context."""
    ctypes.CDLL(None).prctl(15, name, 0, 0, 0)  # PR_SET_NAME
    threading.Event().wait()


def fault():
    """Cause an error that every client of the server receives, including this one."""
    _held[-1].send(b"fault")
    select.select([_held[-1]], [], [])
    synchronize()


def synchronize():
    if select.select([_held[-1]], [], [], 0)[0]:
        raise CudaError(_receive(_held[-1]).get("error"))


def _receive(connection):
    data = connection.recv(1 << 16)
    if not data:  # the server has ended
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
