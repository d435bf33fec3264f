"""What `make demo` shows: training goes on from the checkpoint after a worker was killed.

Runs `hpclaunch --nproc 2 workers/ddp.py` on this machine, kills the worker of rank 1 with SIGKILL
once half of the epochs are saved, and ends with hpclaunch's exit code.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
RUN = Path("demo-run")
HALF = RUN / "checkpoints" / "epoch-3.pt"


def worker_pid(rank: int) -> int:
    """From the journal, where the launcher notes every worker that it starts."""
    entries = map(json.loads, (RUN / "logs" / "journal.jsonl").read_text().splitlines())
    return next(
        e["with"]["pid"]
        for e in entries
        if e.get("note") == "started" and e["with"]["rank"] == rank
    )


def main() -> int:
    shutil.rmtree(RUN, ignore_errors=True)
    launcher = Path(sys.executable).parent / "hpclaunch"
    checkpoints = str(RUN / "checkpoints")
    command = [launcher, "--nproc", "2", "--checkpoint-dir", checkpoints, "--log-dir", RUN / "logs"]
    script = [HERE / "workers" / "ddp.py", "--dir", checkpoints, "--pause", "0.3"]
    print("$", " ".join(str(word) for word in [launcher.name, *command[1:], *script]), flush=True)
    job = subprocess.Popen([*command, *script])
    while not HALF.exists() and job.poll() is None:
        time.sleep(0.05)
    if job.poll() is None:
        pid = worker_pid(rank=1)
        print(f"--- kill -9 {pid}, the worker of rank 1", flush=True)
        os.kill(pid, signal.SIGKILL)
    code = job.wait()
    print(f"--- exit code {code}; the logs of both rounds are in {RUN / 'logs'}")
    return code


if __name__ == "__main__":
    sys.exit(main())
