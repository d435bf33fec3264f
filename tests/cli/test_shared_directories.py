"""Launches in a directory that a group shares: another user may put there whatever is in the way of
a job, and several launches may use one log directory."""

import os
import re
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

import pytest
from launching import LIMIT, hpclaunch, script, start, until

from lines import only
from surroundings import LIGHT_TORCH, SHORT, environment

pytestmark = [pytest.mark.starts, pytest.mark.usefixtures("light_torch")]

NOBODY = 65534
FAILS = """
import os, sys
print("rank", os.environ["RANK"])
raise ValueError("of the worker")
"""
with_others = pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user")


@pytest.fixture
def project():
    """Anybody may write there, and make new files the group's."""
    directory = Path(tempfile.mkdtemp(dir=SHORT, prefix="hpclaunch-test-"))
    directory.chmod(0o2777)
    yield directory
    shutil.rmtree(directory)


def by_another(command, project):
    """Run a shell command as another user, and return whether it succeeded."""
    shell = ["sh", "-c", f"umask 000; {command}"]
    done = subprocess.run(shell, cwd=project, user=NOBODY, group=NOBODY, extra_groups=())
    return done.returncode == 0


def opened(directory):
    """Made by its owner, who lets everybody write there."""
    directory.mkdir()
    directory.chmod(0o2777)


def modes(directory):
    found = [directory, *directory.rglob("*")]
    return {path: stat.S_IMODE(path.lstat().st_mode) & 0o777 for path in found}


@pytest.mark.parametrize("umask", [0o002, 0o000])
@pytest.mark.parametrize("chosen", [(), ("--log-dir=of/this/run",)], ids=["default", "chosen"])
def test_nobody_else_can_read_or_write_what_a_launch_makes(project, umask, chosen):
    options = ("--nproc=1", "--max-restarts=0", "--duplicate-stdout-filters=rank", *chosen)
    done = hpclaunch(*options, script(project, FAILS), cwd=project, umask=umask)
    assert done.returncode == 1, done.stderr
    (made,) = [path for path in project.iterdir() if path.is_dir()]
    for path, mode in modes(made).items():
        assert mode == (0o700 if path.is_dir() else 0o600), path
    names = {path.name for path in made.rglob("*")}
    wanted = {"rank-0.out", "rank-0.err", "rank-0.error.json", "journal.jsonl"}
    assert wanted | {"filtered-agent-0.out"} <= names


@with_others
def test_the_usual_directory_is_another_users(project):
    """The job runs, and says where its logs are."""
    assert by_another("mkdir hpclaunch-logs", project)
    done = hpclaunch("--nproc=1", script(project, "print('ran')"), cwd=project)
    assert (done.returncode, done.stdout) == (0, "ran\n"), done.stderr
    (own,) = (project / f"hpclaunch-logs-{os.geteuid()}").iterdir()
    said = f"hpclaunch-logs belongs to another user: the logs are in {own}\n"
    assert said in done.stderr
    assert (own / "round-0" / "rank-0.out").read_text() == "ran\n"
    assert list((project / "hpclaunch-logs").iterdir()) == []
    done = hpclaunch("doctor", cwd=project)
    line = only(done.stdout, "hpclaunch-logs")
    assert line.startswith("ok ")
    assert f"hpclaunch-logs-{os.geteuid()}" in line
    assert by_another("touch hpclaunch-logs/mine", project)
    assert not by_another(f"ls hpclaunch-logs-{os.geteuid()}", project)


@with_others
def test_the_usual_directory_is_another_users_link_to_ones_own(project):
    """Otherwise another user could choose where logs are written, and which are shown."""
    mine = project / "mine"
    (mine / "7.0" / "round-0").mkdir(parents=True)
    before = sorted(mine.rglob("*"))
    assert by_another("ln -s mine hpclaunch-logs", project)
    done = hpclaunch("--nproc=1", script(project, "print('ran')"), cwd=project)
    assert (done.returncode, done.stdout) == (0, "ran\n"), done.stderr
    assert "hpclaunch-logs belongs to another user: the logs are in" in done.stderr
    assert sorted(mine.rglob("*")) == before


@with_others
@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("mkdir logs", "another user"),
        ("ln -s /tmp logs", "it is a link of another user"),
        ("mkdir logs logs/round-0", "another user"),
    ],
)
def test_a_chosen_directory_that_another_user_has_made(project, command, names):
    assert by_another(command, project)
    done = hpclaunch("--nproc=1", "--log-dir=logs", script(project, FAILS), cwd=project)
    assert done.returncode == 2
    line = only(done.stderr)
    assert line.startswith("hpclaunch: error: cannot write to the log directory logs: ")
    assert names in line


@with_others
@pytest.mark.parametrize("name", ["rank-0.out", "rank-0.err"])
def test_a_link_in_place_of_a_log_ends_the_job_with_a_word(project, name):
    opened(project / "logs")
    opened(project / "logs" / "round-0")
    victim = project / "authorized_keys"
    victim.write_text("mine")
    assert by_another(f"ln -s {victim} logs/round-0/{name}", project)
    done = hpclaunch("--nproc=1", "--log-dir=logs", script(project, FAILS), cwd=project)
    assert done.returncode == 1, done.stderr
    assert f": it is a link: {project}/logs/round-0/{name}" in done.stderr
    assert "Traceback" not in done.stderr
    assert victim.read_text() == "mine"


@with_others
def test_a_directory_of_another_user_in_place_of_a_rounds(project):
    """The owner of the log directory has let everybody write in it."""
    opened(project / "logs")
    victim = project / "authorized_keys"
    victim.write_text("mine")
    assert by_another(f"mkdir logs/round-1; ln -s {victim} logs/round-1/rank-0.err", project)
    done = hpclaunch("--nproc=1", "--log-dir=logs", script(project, FAILS), cwd=project)
    assert done.returncode == 1, done.stderr
    assert f": it belongs to another user: {project}/logs/round-1" in done.stderr
    assert victim.read_text() == "mine"


@with_others
@pytest.mark.parametrize("how", ["--cold", "--preload=json"])
def test_an_error_is_not_written_through_a_link(project, how):
    """The link appears while the worker runs."""
    opened(project / "logs")
    opened(project / "logs" / "round-0")
    victim = project / "authorized_keys"
    victim.write_text("")
    path = script(project, "import torch\n" + WAITS)
    options = ("--nproc=1", "--max-restarts=0", "--log-dir=logs", how, path, "one")
    process = start(*options, cwd=project, environ=environment(PYTHONPATH=LIGHT_TORCH))
    until((project / "one-0").exists)
    assert by_another(f"ln -s {victim} logs/round-0/rank-0.error.json && touch go", project)
    _, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 1, err
    assert victim.read_text() == ""


WAITS = """
import os, sys, time
print(sys.argv[1], "rank", os.environ["RANK"])
open(f"{sys.argv[1]}-{os.environ['RANK']}", "w").close()
while not os.path.exists("go"):
    time.sleep(0.02)
raise ValueError(sys.argv[1])
"""


FILLS_THE_DISK = """
import os, sys
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "1":
    print("ran")
    sys.exit(0)
for number in range(60):
    try:
        open(f"full/{number}", "w").close()
    except OSError:
        sys.exit(3)
"""


def on_a_small_disk(project, temporary):
    """Return a launch whose log directory takes no more files in its second round."""
    (project / "full").mkdir()
    mount = 'mount -t tmpfs -o size=1m,nr_inodes=40 none full && exec "$@"'
    return hpclaunch(
        *("--nproc=1", "--max-restarts=1", "--log-dir=full/logs"),
        script(project, FILLS_THE_DISK),
        cwd=project,
        env=environment(TMPDIR=temporary),
        before=("unshare", "--mount", "sh", "-c", mount, "sh"),
    )


@with_others
def test_when_the_disk_is_full_no_name_is_taken_that_another_user_has_made(project):
    project.chmod(0o755)
    temporary = project / "tmp"
    temporary.mkdir()
    temporary.chmod(0o1777)
    assert by_another(f"mkdir tmp/hpclaunch-logs-{os.geteuid()}", project)
    done = on_a_small_disk(project, temporary)
    assert (done.returncode, done.stdout) == (0, "ran\n"), done.stderr
    (place,) = re.findall(r"the output of round 1 is in (\S+) on \S+: No space", done.stderr)
    made = Path(place).parent
    assert (made.parent, modes(made)[made]) == (temporary, 0o700)
    assert (made / "round-1" / "rank-0.out").read_text() == "ran\n"
    assert list((temporary / f"hpclaunch-logs-{os.geteuid()}").iterdir()) == []


@with_others
def test_when_the_disk_is_full_no_directory_is_used_that_others_can_rename(project):
    temporary = project / "tmp"
    temporary.mkdir(mode=0o700)
    done = on_a_small_disk(project, temporary)
    assert done.returncode == 1, done.stderr
    why = f"nor in the temporary directory: others can rename its contents: {project} "
    assert why in done.stderr
    assert list(temporary.iterdir()) == []


@with_others
def test_no_output_is_lost_if_the_disk_is_full_from_the_start(project):
    project.chmod(0o755)
    temporary = project / "tmp"
    temporary.mkdir(mode=0o700)
    (project / "full").mkdir()
    mount = "mount -t tmpfs -o size=64k none full; head -c 1m /dev/zero > full/zeros 2> /dev/null"
    done = hpclaunch(
        *("--nproc=1", "--log-dir=full/logs", script(project, "print('ran')")),
        cwd=project,
        env=environment(TMPDIR=temporary),
        before=("unshare", "--mount", "sh", "-c", f'{mount}; exec "$@"', "sh"),
    )
    assert (done.returncode, done.stdout) == (0, "ran\n"), done.stderr
    assert re.search(r"the output of round 0 is in (\S+) on \S+: No space", done.stderr)


def test_two_launches_at_once_in_one_log_directory(tmp_path):
    """Each has its own files, and says where; and the next one has the directory again."""
    path = script(tmp_path, WAITS)
    options = ("--nproc=2", "--max-restarts=0", "--log-dir=logs", path)
    launches = {}
    for name in ("one", "two", "three"):
        launches[name] = start(*options, name, cwd=tmp_path)
        until(lambda name=name: len(list(tmp_path.glob(f"{name}-*"))) == 2)
    (tmp_path / "go").touch()
    said_by = {name: each.communicate(timeout=LIMIT) for name, each in launches.items()}
    for name, (out, err) in said_by.items():
        assert launches[name].returncode == 1, err
        assert sorted(out.splitlines()) == [f"{name} rank {rank}" for rank in range(2)]
        others = {"one", "two", "three"} - {name}
        assert not any(f"ValueError: {other}" in err for other in others)
        logs = Path(err.rstrip().rpartition("  logs: ")[2])
        assert (logs == tmp_path / "logs") is (name == "one")
        said = f"the log directory logs is in use: this launch's is logs/{logs.name}\n"
        assert (said in err) is (name != "one")
        stems = [logs / "round-0" / f"rank-{rank}" for rank in range(2)]
        for rank, stem in enumerate(stems):
            assert stem.with_suffix(".out").read_text() == f"{name} rank {rank}\n"
        errors = [Path(f"{stem}.error.json") for stem in stems]
        written = [error.read_text() for error in errors if error.exists()]
        assert any(written)
        for text in filter(None, written):  # the second worker may be ended before it writes
            assert f"ValueError: {name}" in text
        done = hpclaunch("replay", logs / "journal.jsonl", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    done = hpclaunch(*options, "four", cwd=tmp_path)
    assert done.stderr.endswith(f"  logs: {tmp_path}/logs\n")
