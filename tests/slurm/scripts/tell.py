"""A worker without torch: it tells in a file what it was given, and then does as it is told.

    tell.py                          ends at once
    tell.py --until FILE             once the file is there
    tell.py --fail RANK:FILE:HOW     that rank, once the file is there: "kill", or its exit code.
                                     FILE ends with "?": in the first round only

It counts the SIGUSR1 it gets in usr1-RANK. With --save it takes a second to end on SIGTERM or
SIGINT; with --child it has a child that has moved to a session of its own, and that it ends itself
only at a good end.
"""
# ruff: noqa: T201 -- what a worker has to say goes to its standard output

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

RANK = os.environ["RANK"]


def count(*_: object) -> None:
    with open(f"usr1-{RANK}", "a") as f:
        f.write("1")


def save(signum: int, _: object) -> None:
    with open(f"asked-{RANK}", "a") as f:
        f.write(signal.Signals(signum).name)
    time.sleep(1)
    Path(f"saved-{RANK}").touch()
    sys.exit(0)


def wait_for(name: str) -> None:
    while not Path(name).exists():
        time.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--until")
    parser.add_argument("--fail", action="append", default=[])
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--child", action="store_true")
    args = parser.parse_args()

    signal.signal(signal.SIGUSR1, count)
    if args.save:
        signal.signal(signal.SIGTERM, save)
        signal.signal(signal.SIGINT, save)
    child = subprocess.Popen(["sleep", "1000"], start_new_session=True) if args.child else None
    draft = Path(f"draft-{RANK}")
    draft.write_text(json.dumps({**os.environ, "hostname": socket.gethostname()}))
    draft.rename(f"told-{RANK}.json")
    print(f"rank {RANK} is on {socket.gethostname()}")

    for rank, name, how in (spec.split(":") for spec in args.fail):
        once = name.endswith("?")
        if rank == RANK and not (once and os.environ["TORCHELASTIC_RESTART_COUNT"] != "0"):
            wait_for(name.rstrip("?"))
            print(f"last words of rank {RANK}", file=sys.stderr)
            if how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            sys.exit(int(how))
    if args.until:
        wait_for(args.until)
    if child is not None:
        child.kill()


main()
