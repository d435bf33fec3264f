"""Jobs beside processes of others, whatever these are called, and under odd names of their own."""

import os
import signal
import subprocess
import sys
import sysconfig

import pytest
from launching import LIMIT, end, hpclaunch, script, start

from surroundings import LIGHT_TORCH, environment

pytestmark = [pytest.mark.starts, pytest.mark.usefixtures("light_torch")]

# One rank fails, the other waits for it and handles SIGTERM; then all is well.
LOSES = """
import ctypes, os, signal, sys, time
ctypes.CDLL(None).prctl(15, bytes.fromhex(sys.argv[1]), 0, 0, 0)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    signal.signal(signal.SIGTERM, lambda *_: print("asked to end"))
    open("handles-" + os.environ["RANK"], "w").close()
    while os.environ["RANK"] == "0":
        if os.path.exists("handles-1"):
            sys.exit(1)
        time.sleep(0.02)
    while True:
        time.sleep(0.1)
print("done", os.environ["RANK"])
"""
WAITS = """
import ctypes, signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: print("got USR1"))
ctypes.CDLL(None).prctl(15, bytes.fromhex(sys.argv[1]), 0, 0, 0)
print("up")
while True:
    time.sleep(0.1)
"""


HOST = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
CLONE_NEWUTS = 0x04000000
name = b"h\\xf6st\\x1b[31m"
assert libc.unshare(CLONE_NEWUTS) == libc.sethostname(name, len(name)) == 0
os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can name a host")
def test_a_host_of_any_name(tmp_path):
    path = script(tmp_path, "import sys; print('ran'); sys.exit(3)")
    own = ("--nproc=1", "--max-restarts=0", "--tee=3", "--log-line-prefix-template=${hostname} ")
    how = {"cwd": tmp_path, "before": (sys.executable, "-c", HOST), "errors": "surrogateescape"}
    shown = os.fsdecode(b"h\xf6st?[31m")
    done = hpclaunch(*own, path, **how)
    assert done.returncode == 3, done.stderr
    assert done.stdout == f"{shown} ran\n"
    assert f"hpclaunch: rank 0 on {shown} exited with code 3" in done.stderr
    done = hpclaunch("doctor", **how)
    assert f"hpclaunch doctor on {shown}\n" in done.stdout
    assert "\x1b" not in done.stdout + done.stderr


@pytest.mark.parametrize("how", ["--cold", "--bind=auto"])
def test_a_lost_round(strangers, tmp_path, how):
    path = script(tmp_path, LOSES)
    words = ("--nproc=2", how, path, b"mod\xc3".hex())
    done = hpclaunch(*words, cwd=tmp_path, timing={"stuck": 6.0})
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["asked to end", "done 0", "done 1"]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", [b"mod\xc3", b"a\nSigCgt:\t0000", b") R 1 (x"])
def test_a_signal_for_a_worker_of_any_name(tmp_path, name):
    process = start("--nproc=1", "--cold", script(tmp_path, WAITS), name.hex(), cwd=tmp_path)
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGUSR1)
    assert process.stdout.readline() == "got USR1\n"
    code, _, err = end(process)
    assert code == 128 + signal.SIGTERM, err
    assert "fork server" not in err


def test_a_program_of_any_name_that_cannot_be_started(tmp_path):
    program = tmp_path / os.fsdecode(b"gr\xf6\xdfe\x1b")
    program.write_bytes(b"#!/no/such/\xf6\n")
    program.chmod(0o755)
    args = ("--nproc=1", "--max-restarts=0", "--no-python", program)
    done = hpclaunch(*args, cwd=tmp_path, errors="surrogateescape")
    assert done.returncode == 127, done.stderr
    (log,) = tmp_path.glob("hpclaunch-logs/*/round-0/rank-0.err")
    assert log.read_bytes().startswith(b"hpclaunch: cannot start " + bytes(program))
    assert "    | hpclaunch: cannot start " in done.stderr


def test_an_interpreter_whose_name_is_no_text(tmp_path):
    """Workers are forked from a template that has been given its name."""
    python = os.fsdecode(bytes(tmp_path) + b"/py\xc3")
    os.symlink(os.path.realpath(sys.executable), python)
    body = "import gc; print(open('/proc/self/comm', 'rb').read(), gc.get_freeze_count() > 0)"
    env = environment(
        PYTHONPATH=os.pathsep.join([LIGHT_TORCH, *sys.path, sysconfig.get_path("purelib")])
    )
    done = subprocess.run(
        [python, "-m", "hpclaunch", "--nproc=1", script(tmp_path, f"{body}\nimport torch")],
        cwd=tmp_path,
        env=env,
        timeout=LIMIT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "b'py\\xc3\\n' True\n"
