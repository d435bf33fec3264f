"""Time the start of a job of many real agents on this machine, and its restart without one of them.

    python bench/many_agents.py [--agents 256]

Each agent has one worker, a shell that sleeps. "Joined" is the time at which the head has received
the first report of the last agent; "started", the time at which the last worker touches a file.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LIMIT = 300.0  # seconds
WORKER = 'touch "$0/$MASTER_PORT-$RANK"; exec sleep 1000'


class Crowd:
    def __init__(self, count: int, directory: Path) -> None:
        self.directory = directory
        self.touched = directory / "touched"  # a file of each worker that has started
        self.touched.mkdir()
        port = random.randrange(20000, 30000)
        hpclaunch = Path(sys.executable).parent / "hpclaunch"
        command = [str(hpclaunch), f"--nnodes={count - 1}:{count}", "--health=off"]
        command += ["--master-addr=127.0.0.1", f"--master-port={port}", "--no-python"]
        env = os.environ | {"HPCLAUNCH_SECRET_FILE": str(directory / "secret")}
        self.agents = []
        with (directory / "console").open("w") as console:
            for rank in range(count):
                mine = [f"--node-rank={rank}", f"--log-dir={directory}/logs"]
                self.agents.append(
                    subprocess.Popen(
                        [*command, *mine, "sh", "-c", WORKER, str(self.touched)],
                        env=env,
                        stdout=console,
                        stderr=console,
                        stdin=subprocess.DEVNULL,
                    )
                )

    def started(self, count: int, but: set[str]) -> float:
        """Return when the last of so many workers started, by the clock of the file system."""
        limit = time.monotonic() + LIMIT
        while time.monotonic() < limit:
            new = [p for p in self.touched.iterdir() if p.name not in but]
            if len(new) >= count:
                return max(p.stat().st_mtime for p in new)
            time.sleep(0.05)
        console = (self.directory / "console").read_text()
        sys.exit(f"only {len(new)} of {count} workers started:\n{console}")

    def joined(self) -> float:
        """Return when the head received the first report of the last agent."""
        first: dict[int, float] = {}
        journal = self.directory / "logs" / "journal.jsonl"
        while not journal.exists():  # the log service writes it, with a delay
            time.sleep(0.05)
        for line in journal.read_text().splitlines():
            entry = json.loads(line)
            if entry.get("event") == "Received":
                first.setdefault(entry["with"]["sender"], entry["time"])
        return max(first.values())

    def end(self) -> None:
        self.agents[0].send_signal(signal.SIGTERM)
        for agent in self.agents:
            agent.wait(timeout=LIMIT)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--agents", type=int, default=256)
    count = parser.parse_args().agents
    with tempfile.TemporaryDirectory() as name:
        began = time.time()
        crowd = Crowd(count, Path(name))
        try:
            started = crowd.started(count, set())
            joined = crowd.joined()
            before = {p.name for p in crowd.touched.iterdir()}
            crowd.agents[-1].kill()
            killed = time.time()
            again = crowd.started(count - 1, before)
        finally:
            crowd.end()
    print(
        f"{count} agents: {joined - began:.1f} s until all have joined, {started - joined:.2f} s "
        f"from then until all workers have started, {again - killed:.2f} s from SIGKILL of an "
        "agent until all other workers have restarted"
    )


if __name__ == "__main__":
    main()
