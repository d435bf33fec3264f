"""Worker without torch: it writes its environment to environ-RANK.json, and ends on request.

    simple.py                          end at once
    simple.py --until FILE             end when FILE exists
    simple.py --fail RANK:FILE:HOW     this rank fails when FILE exists; HOW is "kill" or its exit
                                       code; with "?" after FILE: in the first round only

It appends to usr1-RANK for each SIGUSR1. With --save, it ends a second after SIGTERM or SIGINT.
With --child, it has a child process in another session, which it kills only at a normal end.
"""
# ruff: noqa: T201 -- the tests read the output

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
    draft.rename(f"environ-{RANK}.json")
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
