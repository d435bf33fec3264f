"""So many real agents on this machine: they join, run a round, lose one of them, and go on.

    python bench/many_agents.py [--agents 256]

Each has one worker, a shell that does nothing. "Joined" is when the head has heard the last agent,
"started" when the last worker has come so far as to say so in a file.
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
        self.said = directory / "said"
        self.said.mkdir()
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
                        [*command, *mine, "sh", "-c", WORKER, str(self.said)],
                        env=env,
                        stdout=console,
                        stderr=console,
                        stdin=subprocess.DEVNULL,
                    )
                )

    def started(self, count: int, but: set[str]) -> float:
        """When the last of so many workers was there, on the clock of files."""
        limit = time.monotonic() + LIMIT
        while time.monotonic() < limit:
            new = [p for p in self.said.iterdir() if p.name not in but]
            if len(new) >= count:
                return max(p.stat().st_mtime for p in new)
            time.sleep(0.05)
        sys.exit(f"{len(new)} of {count} workers came:\n{(self.directory / 'console').read_text()}")

    def joined(self) -> float:
        """When the head heard the last one for the first time."""
        first: dict[int, float] = {}
        journal = self.directory / "logs" / "journal.jsonl"
        while not journal.exists():  # a process of its own writes it
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
            before = {p.name for p in crowd.said.iterdir()}
            crowd.agents[-1].kill()
            killed = time.time()
            again = crowd.started(count - 1, before)
        finally:
            crowd.end()
    print(
        f"{count} agents: processes up and joined {joined - began:.1f} s, all joined to all "
        f"workers started {started - joined:.2f} s, one killed to all others restarted "
        f"{again - killed:.2f} s"
    )


if __name__ == "__main__":
    main()
