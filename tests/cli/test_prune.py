"""hpclaunch prune: the logs of launches that are long over."""

import fcntl
import os
import subprocess
import time

import pytest
from launching import hpclaunch, script

pytestmark = pytest.mark.starts

DAY = 86400


def made(directory, name, days, *others):
    """The logs of a launch that ended so many days ago."""
    run = directory / name
    files = ["journal.jsonl", "journal-agent-1.jsonl", "store.err", "launch.lock"]
    files += ["round-0/rank-0.out", "round-0/rank-0.out.0001", "round-0/rank-0.err"]
    files += ["round-1/rank-0.error.json", "round-1/filtered-agent-0.out", *others]
    files += [f"round-1/evidence/rank-0.{kind}" for kind in ("txt", "native.txt", "txt.new")]
    files += [
        "round-1/evidence/rank-0.collectives.json",
        "status.json",
        "status.json.new",
        "job-75",
    ]
    for file in files:
        path = run / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(5000))
        at = time.time() - days * DAY
        os.utime(path, (at, at))
    return run


def prune(cwd, *args, days=30):
    done = hpclaunch("prune", "--older-than", days, *args, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def logs(tmp_path):
    return tmp_path / "hpclaunch-logs"


def test_what_is_older_is_removed(tmp_path, logs):
    old, new = made(logs, "7.0", 31), made(logs, "8.0", 29)
    listed = prune(tmp_path, "--dry-run").splitlines()
    assert listed == [
        "hpclaunch-logs/7.0: 0 MiB, 31 days old",
        "would remove the logs of 1 launch, 0 MiB; kept 1 younger",
    ]
    assert old.exists()
    assert prune(tmp_path) == "removed the logs of 1 launch, 0 MiB; kept 1 younger\n"
    assert (old.exists(), new.exists()) == (False, True)


def test_one_new_file_keeps_a_run(tmp_path, logs):
    run = made(logs, "7.0", 31)
    (run / "round-1" / "rank-1.out").write_text("still writing")
    assert prune(tmp_path).endswith("of 0 launches, 0 MiB; kept 1 younger\n")


def test_what_cannot_be_removed_keeps_nothing_else(tmp_path, logs):
    (made(logs, "7.0", 31) / "round-0" / "rank-1.out").mkdir()
    at = time.time() - 31 * DAY
    os.utime(logs / "7.0" / "round-0" / "rank-1.out", (at, at))
    other = made(logs, "8.0", 31)
    done = hpclaunch("prune", "--older-than", 30, cwd=tmp_path)
    file = "hpclaunch-logs/7.0/round-0/rank-1.out"
    assert done.stderr.startswith(f"hpclaunch: error: cannot remove {file}: ")
    assert (done.returncode, done.stdout) == (
        2,
        "removed the logs of 1 launch, 0 MiB; kept 0 younger\n",
    )
    assert not other.exists()


def test_what_is_not_ours_stays(tmp_path, logs):
    run = made(logs, "7.0", 31, "round-0/model.pt", "checkpoints/epoch-1.pt", "notes.txt")
    (logs / "data").mkdir()
    (logs / "link").symlink_to(made(tmp_path / "elsewhere", "9.0", 31))
    prune(tmp_path)
    left = [str(path.relative_to(run)) for path in run.rglob("*") if path.is_file()]
    assert sorted(left) == ["checkpoints/epoch-1.pt", "notes.txt", "round-0/model.pt"]
    assert (logs / "data").exists()
    assert (logs / "link" / "journal.jsonl").exists()


def test_links_of_others_are_not_followed(tmp_path, logs):
    """A group may write in the log directory that a user has chosen."""
    run = made(logs, "7.0", 31)
    mine = made(tmp_path, "mine", 31)
    (mine / "round-0" / "evidence").mkdir()
    for number in (0, 1):
        (run / f"round-{number + 7}").symlink_to(mine / f"round-{number}")
    (run / "round-1" / "evidence" / "rank-0.txt").unlink()
    before = sorted(mine.rglob("*"))
    prune(tmp_path)
    assert sorted(mine.rglob("*")) == before
    assert sorted(path.name for path in run.rglob("*")) == ["round-7", "round-8"]


def test_what_somebody_uses_stays(tmp_path, logs):
    read, locked = made(logs, "7.0", 31), made(logs, "8.0", 31)
    command = ["tail", "-f", read / "round-0" / "rank-0.out"]
    reader = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        reader.stdout.read(1)
        with (locked / "launch.lock").open() as f:
            fcntl.flock(f, fcntl.LOCK_SH)
            assert prune(tmp_path).endswith("kept 0 younger, 2 in use\n")
            assert read.exists()
            assert locked.exists()
    finally:
        reader.kill()
        reader.communicate()


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (["prune"], "the following arguments are required: --older-than"),
        (["prune", "--older-than", "0"], "'0' is not a whole number, 1 or more"),
        (["prune", "--older-than", "3", "nowhere"], "cannot look for logs in nowhere: No such"),
    ],
)
def test_mistakes(in_process, tmp_path, words, wrong):
    done = in_process(*words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert wrong in done.stderr
    assert "Traceback" not in done.stderr


def test_thousands_of_runs(tmp_path, logs):
    """A launch looks at none of them, and all are removed."""
    for number in range(3000):
        run = logs / f"{number}.0"
        (run / "round-0").mkdir(parents=True)
        for name in ("journal.jsonl", "round-0/rank-0.out"):
            (run / name).touch()
            os.utime(run / name, (0, 0))
    train = script(tmp_path, "print('trained')")
    assert hpclaunch(train, cwd=tmp_path).returncode == 0
    assert "removed the logs of 3,000 launches" in prune(tmp_path)
    assert len(list(logs.iterdir())) == 1
