"""The pictures of the README, made by the product itself: pictures/report.png and pictures/top.svg.

    python docs/pictures.py    # two minutes; needs chromium, and what the workers need

A real job of four ranks trains workers/ddp.py on this machine. Two of its workers are killed.
"""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.text import Text

from hpclaunch.core.protocol.job_snapshot import LaunchSnapshot
from hpclaunch.observe.text_style import TextStyle
from hpclaunch.observe.top_screen import TopState, top_screen
from hpclaunch.system.network import launches

ROOT = Path(__file__).parents[1]
PICTURES = Path(__file__).parent / "pictures"
HPCLAUNCH = Path(sys.executable).parent / "hpclaunch"
EPOCHS = 30
KILLS = {9: 1, 20: 2}  # epochs, each with the rank that is killed once it is saved
LOOKED_AT = 24  # the epoch in which the screen is taken
WINDOW = 1280, 870  # pixels
SCREEN = 96, 18  # columns, lines
FONTS = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)  # which rich would load from elsewhere


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        words = ["--nproc", "4", "--max-restarts", "4", "--checkpoint-dir", "saved"]
        script = [ROOT / "workers" / "ddp.py", "--dir", "saved", "--pause", "2"]
        command = [HPCLAUNCH, *words, "--log-dir", "logs", *script, "--epochs", str(EPOCHS)]
        job = subprocess.Popen(command, cwd=work)
        for epoch in range(EPOCHS):
            while not (work / "saved" / f"epoch-{epoch}.pt").exists():
                assert job.poll() is None, "the job has ended early"
                time.sleep(0.1)
            if epoch in KILLS:
                os.kill(_worker(work / "logs", KILLS[epoch]), signal.SIGKILL)
            if epoch == LOOKED_AT:
                _draw_screen(work)
        assert job.wait() == 0, "the job has failed"
        subprocess.run([HPCLAUNCH, "report", "logs", "--html", "report.html"], cwd=work, check=True)
        _photograph(work / "report.html", work)


def _worker(logs: Path, rank: int) -> int:
    """Return the pid of the newest worker of this rank."""
    entries = map(json.loads, (logs / "journal.jsonl").read_text().splitlines())
    started = (entry["with"] for entry in entries if entry.get("note") == "started")
    return [each["pid"] for each in started if each["rank"] == rank][-1]


def _draw_screen(work: Path) -> None:
    launch = _looked_at(work)
    columns, lines = SCREEN
    style = TextStyle(columns, colour=True)
    screen = "\n".join(top_screen(launch, TopState(by_rank=True), style, lines).lines)
    console = Console(record=True, width=columns, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(screen.replace(str(work), "/scratch/run"), no_wrap=True))
    svg = console.export_svg(title="hpclaunch top", unique_id="top")
    (PICTURES / "top.svg").write_text(FONTS.sub("", svg))


def _looked_at(work: Path) -> LaunchSnapshot:
    """Return the launch once all its agents have sent a snapshot, as they do for a viewer."""
    while True:
        for launch in launches.all_launches(os.environ).launches:
            job = launch.job if launch.logs == str(work / "logs") else None
            if job is not None and job.is_complete and job.pace:
                return launch
        time.sleep(0.5)


def _photograph(page: Path, work: Path) -> None:
    width, height = WINDOW
    options = [f"--user-data-dir={work / 'browser'}", f"--window-size={width},{height}"]
    options += ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    picture = f"--screenshot={PICTURES / 'report.png'}"
    subprocess.run(["chromium", *options, picture, page.as_uri()], check=True)


if __name__ == "__main__":
    main()
