"""The two output streams of a worker, where both go to one place, and where a program writes to
them by name."""

import subprocess

import pytest
from launching import HPCLAUNCH, LIMIT, hpclaunch, script

from surroundings import environment

pytestmark = [pytest.mark.starts, pytest.mark.usefixtures("light_torch")]

LINES = 300
BOTH = f"""
import sys
for i in range({LINES}):
    print(i, "out", flush=True)
    print(i, "err", file=sys.stderr, flush=True)
"""
IN_ORDER = [f"{i} {stream}" for i in range(LINES) for stream in ("out", "err")]
# Each line but those of `>&2` is written through a descriptor of its own.
WRAPPER = """\
#!/bin/bash
echo "line 1 of $RANK" >&2
echo "line 2 of $RANK" > /dev/stderr
echo "line 3 of $RANK" >&2
echo "line 4 of $RANK" | tee /dev/stderr > /dev/null
echo "line 5 of $RANK"
echo "line 6 of $RANK" > /dev/stdout
echo "line 7 of $RANK"
"""


def in_one_place(*args, cwd):
    """Return the lines of a run whose standard output and standard error are one pipe."""
    done = subprocess.run(
        [HPCLAUNCH, *map(str, args)],
        cwd=cwd,
        env=environment(),
        timeout=LIMIT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    return [line for line in done.stdout.splitlines() if not line.startswith("hpclaunch:")]


def test_lines_of_both_streams_keep_their_order(tmp_path):
    train = script(tmp_path, BOTH)
    assert in_one_place("--log-dir", "logs", "--nproc", 1, train, cwd=tmp_path) == IN_ORDER
    written = tmp_path / "logs" / "round-0" / "rank-0.out"
    assert written.read_text().splitlines() == IN_ORDER
    assert not written.with_suffix(".err").exists()
    shown = hpclaunch("logs", "--stderr", "logs", cwd=tmp_path).stdout.splitlines()
    assert [line.partition(": ")[2] for line in shown if "[0]: " in line] == IN_ORDER


def test_a_message_begins_a_line_of_its_own_after_a_progress_bar(tmp_path):
    again = "os.environ['TORCHELASTIC_RESTART_COUNT'] == '1' or os._exit(9)"
    bar = f"import os, sys, time\nprint(end=' 35%|###|', flush=True)\ntime.sleep(1)\n{again}\n"
    lines = in_one_place("--nproc", 1, script(tmp_path, bar), cwd=tmp_path)
    assert lines == [" 35%|###|"] * 2


def test_streams_that_go_to_two_places_have_two_files(tmp_path):
    train = script(tmp_path, BOTH)
    done = hpclaunch("--log-dir", "logs", "--nproc", 1, train, cwd=tmp_path)
    for stream, said in (("out", done.stdout), ("err", done.stderr)):
        wanted = [line for line in IN_ORDER if line.endswith(stream)]
        assert [line for line in said.splitlines() if line.endswith(f" {stream}")] == wanted
        assert (tmp_path / f"logs/round-0/rank-0.{stream}").read_text().splitlines() == wanted


@pytest.mark.parametrize("run", [in_one_place, hpclaunch])
def test_a_program_that_opens_its_streams_by_name_loses_no_line(tmp_path, run):
    wrapper = script(tmp_path, WRAPPER, "wrapper.sh")
    wrapper.chmod(0o755)
    done = run("--log-dir", "logs", "--nproc", 2, "--no-python", wrapper, cwd=tmp_path)
    shown = done if run is in_one_place else (done.stdout + done.stderr).splitlines()
    for rank in range(2):
        wanted = [f"line {i} of {rank}" for i in range(1, 8)]
        assert sorted(line for line in shown if line.endswith(f"of {rank}")) == wanted
        files = sorted((tmp_path / "logs" / "round-0").glob(f"rank-{rank}.???"))
        assert sorted("".join(file.read_text() for file in files).splitlines()) == wanted
