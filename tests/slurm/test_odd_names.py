"""Names that are not UTF-8 survive a launch, a restart and a takeover unchanged. Foreign files in a
shared directory do no harm."""

from __future__ import annotations

import os
import pwd
import shlex
from pathlib import Path

import pytest

from .cluster import Cluster, Job, eventually
from .conftest import AGENT, NEW_HEAD, PATIENT, SCRIPTS, WORKER, Launch
from .scripts import resume

USER = "nobody"
NAME = b"gr\xf6\xdfe \xff"  # in Latin-1, and in no encoding
SHELL = r"$'gr\366\337e \377'"
RECORD = """
import os, sys, time
rank, round_ = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
words = [os.fsencode(word) for word in sys.argv[1:]]
words += [os.environb[b"ODD"], os.environb[b"HPCLAUNCH_CHECKPOINT"]]
with open(f"draft-{rank}", "wb") as f:
    f.write(b"\\n".join(words))
os.rename(f"draft-{rank}", f"words-{rank}")
while not os.path.exists("go"):
    time.sleep(0.05)
"""


def require_names(job: Job, workers: int, point: bytes) -> None:
    """Require that all workers of this round have the argument, the variable and the checkpoint."""

    def recorded() -> list[Path]:
        return list(job.directory.glob("words-*"))

    eventually(f"{workers} workers", lambda: len(recorded()) == workers)
    for path in recorded():
        assert path.read_bytes().split(b"\n") == [NAME, NAME, point]
        path.unlink()


@pytest.mark.parametrize("locale", ["C.UTF-8", "C"])
def test_names_survive_a_restart_and_a_takeover(
    cluster: Cluster, launch: Launch, tmp_path: Path, locale: str
) -> None:
    directory = tmp_path / os.fsdecode(NAME)
    directory.mkdir()
    point = os.fsencode(directory) + b"/step-1-" + NAME + b".pt"
    resume.save(1, Path(os.fsdecode(point)))
    (tmp_path / "record.py").write_text(RECORD)
    options = f"--nproc 1 --nnodes 2:3 {shlex.join(map(str, PATIENT))} --cold"
    options += f' --checkpoint-dir "$ODD" --log-dir "$ODD"/logs-{SHELL}'
    srun = f"export ODD={SHELL}\nsrun {SCRIPTS}/agent.sh {options} record.py {SHELL} "
    env = {"LC_ALL": locale, "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    job = launch(srun=srun, env=env)
    require_names(job, 3, point)
    for victim, host, left in ((WORKER, "n3", 3), (AGENT, "n1", 2), (WORKER, "n3", 2)):
        process = cluster.process(victim, host=host)
        process.kill()
        require_names(job, left, point)
    (tmp_path / "go").touch()
    ended = job.wait()
    assert {job.codes[task] for task in (1, 2)} == {0}, str(ended)
    assert NEW_HEAD.search(ended.output)
    assert "Traceback" not in ended.output
    logs = os.fsencode(directory) + b"/logs-" + NAME + b"/round-3"
    assert {b"rank-0.out", b"rank-1.out"} <= set(os.listdir(logs))


@pytest.mark.parametrize("umask", ["002", "000"])
def test_a_directory_that_a_group_shares(cluster: Cluster, launch: Launch, umask: str) -> None:
    """Another user has made directories there with the names of ours."""
    home = cluster.directory_of(USER)
    home.chmod(0o2777)
    planted = [home / "hpclaunch-logs", home / "hpclaunch-logs" / "planted"]
    for path in planted:
        path.mkdir()
    entry = pwd.getpwnam("daemon")
    for path in planted:
        os.chown(path, entry.pw_uid, entry.pw_gid)
    srun = f"umask {umask}\nsrun {SCRIPTS}/agent.sh --nproc 1 {SCRIPTS}/simple.py"
    job = launch(srun=srun, user=USER, directory=home, nodes=2)
    ended = job.wait()
    assert ended.code == 0, str(ended)
    own = home / f"hpclaunch-logs-{pwd.getpwnam(USER).pw_uid}"
    assert ended.output.count("hpclaunch-logs belongs to another user") == 1
    assert str(own / f"{job.id}.0") in ended.output
    for path in (own, *own.rglob("*")):
        mode = path.lstat().st_mode & 0o777
        assert mode == (0o700 if path.is_dir() else 0o600), path
    assert {path.name for path in own.rglob("*.out")} == {f"rank-{rank}.out" for rank in range(2)}
    assert list(planted[0].iterdir()) == planted[1:]
