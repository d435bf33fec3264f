"""The front end of the stand-in for nvidia-cuda-mps-control, and what its daemon shares with it.

A test starts many front ends, so it imports as little as possible.
"""

# ruff: noqa: T201

import _socket
import os
import stat
import sys

PIPES = os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or "/tmp/nvidia-mps"
LOGS = os.environ.get("CUDA_MPS_LOG_DIRECTORY") or "/var/log/nvidia-mps"
DEVICES = os.environ.get("CUDA_VISIBLE_DEVICES", "")
_WORDS = [word.partition("@") for word in os.environ.get("MPS_STAND_IN", "").split(",")]
TRAITS = {trait for trait, _, gpu in _WORDS if gpu in ("", DEVICES)}
FOREVER = float("inf")
LONGEST = 106  # of a socket's path
END = b"\0"  # of an answer to the front end
SHIFT = 1 << 22 if "elsewhere" in TRAITS else 0  # between the pids there and here
HELP = "CUDA MPS Control for Linux/Unix. This is a stand-in for tests.\n"


def front_end():
    daemon = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    if len(f"{PIPES}/control_privileged") > LONGEST:
        sys.exit(1)
    try:
        if os.stat(f"{PIPES}/control").st_mode & stat.S_IFSOCK != stat.S_IFSOCK:
            raise OSError
        daemon.connect(f"{PIPES}/control")
        daemon.send(b"UI")
    except OSError:
        print("Cannot find MPS control daemon process", file=sys.stderr)
        sys.exit(1)
    if "warns" in TRAITS:
        print("a warning beside the answer", file=sys.stderr, flush=True)
    for line in sys.stdin:
        daemon.send(line.encode())
        answer = b""
        while not answer.endswith(END):
            data = daemon.recv(1 << 16)
            if not data:
                sys.exit(1)
            answer += data
        complains = "complains" in TRAITS and answer.startswith(b"Unknown command")
        stream = sys.stderr if complains else sys.stdout
        print(answer[:-1].decode(), end="", file=stream, flush=True)
        if line.startswith("quit") and answer == END:
            sys.exit(0)


def main(options):
    with open("/proc/self/comm", "w") as f:
        f.write("nvidia-cuda-mps-control")
    if not options:
        front_end()
    elif options[0] in ("-h", "--help"):
        print(HELP, end="")
    elif options[0] in ("-f", "-d"):
        import mps_stand_in_daemon

        os.umask(0)
        if options[0] == "-d":
            mps_stand_in_daemon.background()
        mps_stand_in_daemon.foreground()
    else:
        sys.exit(1)
