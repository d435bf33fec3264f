"""Whatever a user launches: scripts, modules, programs, and lines with a python too many."""

import os
import pty
import signal
import subprocess
import sys
import zipfile

import pytest
from launching import end, hpclaunch, script, start, until

from surroundings import environment

pytestmark = [pytest.mark.starts, pytest.mark.usefixtures("light_torch")]

REPORT = "import os, sys; print(os.environ['RANK'], __name__, sys.argv[1:])\n"


def both(done, *expected):
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == sorted(expected)


def test_a_module(tmp_path):
    package = tmp_path / "mine"
    package.mkdir()
    (package / "__init__.py").touch()
    script(package, REPORT)
    done = hpclaunch("--nproc", 2, "-m", "mine.train", "--lr", "1", cwd=tmp_path)
    both(done, "0 __main__ ['--lr', '1']", "1 __main__ ['--lr', '1']")


@pytest.mark.parametrize("before", [["python"], ["python3", "-u"], [sys.executable, "-X", "dev"]])
def test_a_leading_python_is_taken_off(tmp_path, before):
    script(tmp_path, REPORT)
    done = hpclaunch("--nproc", 1, *before, "train.py", "-u", "x y", cwd=tmp_path)
    both(done, "0 __main__ ['-u', 'x y']")
    assert f"{before[0]} before the script is not needed" in done.stderr


def test_a_leading_python_that_is_not_there(tmp_path):
    """The workers' own is meant: Debian has no `python`, and some clusters no python3.9."""
    script(tmp_path, REPORT)
    env = environment(PATH=tmp_path)
    both(hpclaunch("--nproc=1", "python2.9", "train.py", cwd=tmp_path, env=env), "0 __main__ []")


def test_a_leading_python_with_a_module_or_a_command(tmp_path):
    script(tmp_path, REPORT)
    both(hpclaunch("--nproc=1", "python", "-m", "train", "a", cwd=tmp_path), "0 __main__ ['a']")
    both(hpclaunch("--nproc=1", "python", "-c", REPORT, "a", cwd=tmp_path), "0 __main__ ['a']")


WHOLE = """\
import os, sys
print(os.environ["RANK"], sys.argv, __name__, __file__, repr(sys.path[0]), sorted(globals()))
print(repr(sys.stdin.read()))
def fail():
    raise ValueError(os.environ["RANK"])
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    os.kill(os.getpid(), 9)
import torch
if os.environ["RANK"] == "0":
    open("first-has-ended", "w").close()
else:
    import time
    while not os.path.exists("first-has-ended"):
        time.sleep(0.01)
    fail()
"""


@pytest.mark.parametrize("before", [[], ["--cold"], [sys.executable]])
def test_a_script_on_standard_input(tmp_path, before):
    """Each worker of each round reads all of it, and then is what Python makes of it."""
    words = ["--nproc=2", "--max-restarts=1", "--log-dir=logs", *before, "-", "a", "--lr=1"]
    done = hpclaunch(*words, cwd=tmp_path, input=WHOLE)
    assert done.returncode == 1, done.stderr
    for rank in "01":
        env = environment(RANK=rank, TORCHELASTIC_RESTART_COUNT=1)
        alone = subprocess.run(
            [sys.executable, "-", "a", "--lr=1"],
            cwd=tmp_path,
            env=env,
            input=WHOLE,
            capture_output=True,
            text=True,
        )
        worker = tmp_path / "logs" / "round-1" / f"rank-{rank}"
        assert worker.with_suffix(".out").read_text() == alone.stdout
        assert worker.with_suffix(".err").read_text() == alone.stderr


@pytest.mark.parametrize("words", [["-"], ["python3", "-u", "-"]])
def test_no_script_on_standard_input(tmp_path, words):
    done = hpclaunch(*words, cwd=tmp_path, input="")
    assert done.returncode == 2
    assert done.stderr == "hpclaunch: error: - is a script on standard input, which is empty\n"


def test_a_terminal_has_no_script(tmp_path):
    held, terminal = pty.openpty()
    done = hpclaunch("-", cwd=tmp_path, stdin=terminal)
    os.close(terminal)
    os.close(held)
    assert done.returncode == 2
    assert "standard input, which is a terminal: redirect a file" in done.stderr


def test_an_interrupt_while_the_script_is_read(tmp_path):
    process = start("--nproc=1", "-", cwd=tmp_path, stdin=subprocess.PIPE)
    until(lambda: is_reading(process.pid))
    assert end(process, signal.SIGINT) == (128 + signal.SIGINT, "", "")


EARLY = """\
import os, signal, sys
from hpclaunch import cli

class Interrupted:
    def find_spec(self, name, *_):
        if name == "msgspec" and "none" not in sys.argv:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupted())
if "ignored" in sys.argv:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
before = signal.getsignal(signal.SIGINT)
code = cli.main(["replay", os.devnull])
assert "msgspec" in sys.modules and signal.getsignal(signal.SIGINT) is before
sys.exit(code)
"""


@pytest.mark.parametrize(("how", "code"), [("usual", -signal.SIGINT), ("ignored", 2), ("none", 2)])
def test_an_interrupt_within_the_first_imports(how, code):
    command = [sys.executable, "-c", EARLY, how]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    assert done.stderr.count("\n") == (how != "usual")  # the complaint of replay


def is_reading(pid):
    """Return True if the process waits in read(2) of its standard input."""
    with open(f"/proc/{pid}/syscall") as f:
        return f.read().split()[:2] == ["0", "0x0"]


def test_a_script_that_is_called_python(tmp_path):
    script(tmp_path, REPORT, "python.py")
    both(hpclaunch("--nproc=1", "python.py", cwd=tmp_path), "0 __main__ []")


LONG = "/a" * 150 + "/bin/python3"
FOR_BOTH = {
    "uv": "#!/usr/bin/env -S uv run --script\n# /// script\n# dependencies = []\n# ///\n",
    "pip, by a long path": f"#!/bin/sh\n'''exec' {LONG} \"$0\" \"$@\"\n' '''\n",
    "a long path": f"#!{LONG}\n",
    "a shell that starts Python": '#!/usr/bin/env bash\n"exec" "python3" "$0" "$@"\n',
    "another language": "#!/opt/site/launch-me\n",
}


@pytest.mark.parametrize("start", FOR_BOTH.values(), ids=FOR_BOTH)
def test_a_script_with_another_first_line_than_python(tmp_path, start):
    both(hpclaunch("--nproc=1", script(tmp_path, start + REPORT), cwd=tmp_path), "0 __main__ []")


def test_an_archive_that_a_shell_can_start(tmp_path):
    with zipfile.ZipFile(tmp_path / "train.pex", "w") as archive:
        archive.writestr("__main__.py", REPORT)
    content = b'#!/bin/sh\nexec python3 "$0" "$@"\nexit\n' + (tmp_path / "train.pex").read_bytes()
    (tmp_path / "train.pex").write_bytes(content)
    both(hpclaunch("--nproc=1", "train.pex", cwd=tmp_path), "0 __main__ []")


def test_a_program_that_is_not_python(tmp_path):
    script(tmp_path, '#!/bin/sh\necho "$RANK $1"\n', "run.sh").chmod(0o755)
    both(hpclaunch("--nproc=2", "--no-python", "./run.sh", "a b", cwd=tmp_path), "0 a b", "1 a b")
    both(hpclaunch("--nproc=1", "--no-python", "sh", "-c", "echo $RANK", cwd=tmp_path), "0")


def test_a_shell_script_that_starts_python(tmp_path):
    script(tmp_path, REPORT)
    script(tmp_path, '#!/bin/bash\nexec python3 train.py "$@"\n', "run.sh").chmod(0o755)
    both(hpclaunch("--nproc=1", "--no-python", "./run.sh", "a", cwd=tmp_path), "0 __main__ ['a']")


def test_run_path(tmp_path):
    path = script(tmp_path, REPORT)
    both(
        hpclaunch("--nproc=1", "--run-path", path, "-m", "a", cwd=tmp_path),
        "0 __main__ ['-m', 'a']",
    )


def test_the_local_rank_in_an_argument(tmp_path):
    script(tmp_path, REPORT)
    done = hpclaunch("--nproc=2", "train.py", "cuda:${local_rank}", "$HOME", cwd=tmp_path)
    both(done, "0 __main__ ['cuda:0', '$HOME']", "1 __main__ ['cuda:1', '$HOME']")


def test_the_package_is_the_command(tmp_path):
    script(tmp_path, REPORT)
    command = (sys.executable, "-m")
    done = hpclaunch("--nproc", 1, "train.py", cwd=tmp_path)
    again = subprocess.run(
        [*command, "hpclaunch", "--nproc", "1", "train.py"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert (again.returncode, again.stdout) == (done.returncode, done.stdout)


def test_a_script_by_the_name_of_a_command(tmp_path):
    script(tmp_path, REPORT, "doctor")
    both(hpclaunch("doctor", "a", cwd=tmp_path), "0 __main__ ['a']")


def test_one_worker_where_there_is_no_gpu(tmp_path):
    if os.path.exists("/proc/driver/nvidia"):
        pytest.skip("there is a GPU here")
    both(hpclaunch(script(tmp_path, REPORT), cwd=tmp_path), "0 __main__ []")


@pytest.mark.parametrize("visible", [None, "4,5"])
def test_a_virtual_local_rank(tmp_path, visible):
    body = (
        "import os\n"
        "names = ['RANK', 'LOCAL_RANK', 'HPCLAUNCH_LOCAL_RANK', 'CUDA_VISIBLE_DEVICES']\n"
        "print(*(os.environ[n] for n in names))\n"
    )
    env = environment(**({"CUDA_VISIBLE_DEVICES": visible} if visible else {}))
    first, second = ("4", "5") if visible else ("0", "1")
    done = hpclaunch(
        "--nproc=2", "--virtual-local-rank", script(tmp_path, body), cwd=tmp_path, env=env
    )
    both(done, f"0 0 0 {first}", f"1 0 1 {second}")


def test_a_virtual_local_rank_without_a_gpu_for_it(tmp_path):
    env = environment(CUDA_VISIBLE_DEVICES="0")
    args = ["--nproc=2", "--virtual-local-rank", script(tmp_path, REPORT)]
    done = hpclaunch(*args, cwd=tmp_path, env=env)
    assert done.returncode == 2
    assert "local rank 1 has no GPU" in done.stderr
    assert "Traceback" not in done.stderr


def test_each_worker_has_its_share_of_the_cpus(tmp_path):
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        pytest.skip("one CPU cannot be shared out")
    path = script(tmp_path, "import os; print(*sorted(os.sched_getaffinity(0)))")

    def seen(*args):
        done = hpclaunch("--nproc=2", *args, path, cwd=tmp_path)
        return [set(map(int, line.split())) for line in done.stdout.splitlines()]

    one, other = seen()
    assert not one & other
    assert one | other == set(cpus)
    assert seen("--bind", "none") == [set(cpus)] * 2
