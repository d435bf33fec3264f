"""`hpclaunch shim`: whoever calls torchrun gets hpclaunch, and sees torchrun."""

import json
import os
import shutil
import signal
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
from conformance.launchers import Launchers
from launching import HPCLAUNCH, LIMIT, script
from test_conformance import assert_same, place
from test_usage import WITHOUT_ROOTS_RIGHTS

import hpclaunch
from hpclaunch.cli import main, program, shim
from hpclaunch.system.processes.fork_server_client import SITE
from lines import only
from surroundings import LIGHT_TORCH, environment

pytestmark = pytest.mark.starts

SHIM = shim.DIRECTORY
BIN = HPCLAUNCH.parent  # of hpclaunch, of torch's own torchrun, and of an interpreter
ROOT = Path(hpclaunch.__file__).parents[2]
RUN, LAUNCH = "torch.distributed.run", "torch.distributed.launch"

REPORT = """
import json, os, signal, sys, time
wants = sys.argv[1:]
words = ["rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], *wants]
sys.stdout.write(" ".join(words) + chr(10))  # in one piece: under torchrun ranks share a pipe
sys.stdout.flush()
for want in wants:
    if want == "environment":
        with open(f"told-{os.environ['RANK']}", "w") as f:
            json.dump({"environ": {**os.environ}, "executable": sys.executable}, f)
    if want == "exit":
        sys.exit(5)
    if want == "die":
        os.kill(os.getpid(), 9)
    if want == "die once" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), 9)
    if want == "wait":
        time.sleep(600)
"""


@pytest.fixture
def cwd(tmp_path):
    script(tmp_path, REPORT)
    return tmp_path


def with_path(*directories, **changes):
    """Return the environment of a user with these directories first in PATH.

    Those of hpclaunch and torch come last.
    """
    path = os.pathsep.join(map(str, (*directories, BIN, "/usr/local/bin", "/usr/bin", "/bin")))
    return environment(PATH=path, **changes)


def start(*command, cwd, env, **more):
    return subprocess.Popen(
        list(map(str, command)),
        cwd=cwd,
        env=env,
        text=True,
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more},
    )


def finish(process, given=""):
    out, err = process.communicate(given, LIMIT)
    return subprocess.CompletedProcess((), process.returncode, out, err)


def run(*command, cwd, directories=(SHIM,), env=None, before=(), **changes):
    """Run a program that is found in PATH, as a shell finds it."""
    env = with_path(*directories, **changes) if env is None else env
    return finish(start(*before, *command, cwd=cwd, env=env))


def report(cwd, rank=0):
    with open(cwd / f"told-{rank}") as f:
        return json.load(f)


def is_hpclaunch(done, cwd):
    """Return True if hpclaunch ran the worker, which must not see the user's options."""
    assert done.returncode == 0, done.stderr
    names = report(cwd)["environ"]
    (cwd / "told-0").unlink()
    assert shim.OPTIONS not in names
    return "HPCLAUNCH_STORE" in names


# The command


def test_it_prints_the_directory(tmp_path):
    done = run("hpclaunch", "shim", cwd=tmp_path, directories=())
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{SHIM}\n", "")
    assert {"torchrun", "sitecustomize.py"} <= set(os.listdir(SHIM))
    assert not {"python", "python3"} & set(os.listdir(SHIM))


def test_a_program_that_cannot_be_executed(tmp_path, monkeypatch, capsys):
    (tmp_path / "torchrun").touch(0o600)
    monkeypatch.setattr(shim, "DIRECTORY", tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert main(["shim"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"hpclaunch: error: cannot be executed: {tmp_path}/torchrun: ")


def test_a_directory_that_path_cannot_have(tmp_path, monkeypatch, capsys):
    directory = tmp_path / "a:b"
    shutil.copytree(SHIM, directory)
    monkeypatch.setattr(shim, "DIRECTORY", directory)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert main(["shim"]) == 2
    assert "cannot be in PATH" in capsys.readouterr().err


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The prefix of a virtual environment with hpclaunch from a wheel; its path has a space."""
    directory = tmp_path_factory.mktemp("built")
    for name in ("launcher", "pyproject.toml", "README.md", "LICENSE"):  # a build leaves things
        there = directory / "source" / name
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(ROOT / name, there, ignore=ignored)
        else:
            shutil.copy(ROOT / name, there)
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
    wheel = [*pip, "wheel", "--no-build-isolation", "--no-deps", "-w", directory]
    subprocess.run([*wheel, directory / "source"], check=True, timeout=LIMIT)
    (file,) = directory.glob("hpclaunch-*.whl")
    prefix = directory / "an environment"
    venv.create(prefix, symlinks=True)
    install = [*pip, "--python", prefix, "install", "--no-index", "--no-deps", file]
    subprocess.run(install, check=True, timeout=LIMIT)
    # What hpclaunch needs, and torch, are those of the tests.
    (site,) = prefix.glob("lib/python*/site-packages")
    others = [entry for entry in sys.path if entry.endswith("site-packages")]
    (site / "others.pth").write_text("\n".join(others))
    return prefix, file


def test_a_wheel_has_a_program_that_can_be_executed(installed, cwd):
    prefix, file = installed
    with zipfile.ZipFile(file) as wheel:
        modes = {
            i.filename: i.external_attr >> 16 for i in wheel.infolist() if "shims" in i.filename
        }
    assert {name: bool(mode & 0o111) for name, mode in modes.items()} == {
        "hpclaunch/shims/sitecustomize.py": False,
        "hpclaunch/shims/torchrun": True,
    }
    shown = run(prefix / "bin" / "hpclaunch", "shim", cwd=cwd)
    assert shown.returncode == 0, shown.stderr
    directory = Path(shown.stdout.rstrip("\n"))
    assert directory.is_relative_to(prefix)
    # It finds the hpclaunch of its own installation, although there is another one in PATH.
    done = run("torchrun", "train.py", "environment", cwd=cwd, directories=[directory])
    assert report(cwd)["environ"]["PYTHONPATH"].startswith(str(directory.parent))
    assert is_hpclaunch(done, cwd)


# What is found and started


def echo(directory, name):
    """Return a program that shows how it was started."""
    directory.mkdir(exist_ok=True)
    return script(directory, '#!/bin/sh\nprintf "%s\\n" "$0" "$@"\n', name).chmod(0o755)


PASSED_ON = [
    ["-c", "import sys", "-m", RUN],
    ["-V", "-m", RUN],
    ["train.py", "-m", RUN],
    ["-m"],
    ["-m", "torch.distributed.runner", "a b", ""],
    ["-W", "-m", RUN],
    ["-X", "-mtorch.distributed.run", "train.py"],
    ["-um", "a", "-m", RUN],
]
TAKEN = [
    (["-m", RUN], RUN, []),
    (["-m", LAUNCH, "train.py", "a  b", "", "*"], LAUNCH, ["train.py", "a  b", "", "*"]),
    ([f"-m{RUN}", "train.py"], RUN, ["train.py"]),
    (["-u", "-m", RUN, "-m", "train"], RUN, ["-m", "train"]),
    (["-uOm", RUN, "train.py"], RUN, ["train.py"]),
    ([f"-uOm{RUN}", "train.py"], RUN, ["train.py"]),
    (["-X", "dev", "-W", "ignore", "-Wonce", "-Xutf8", "-m", RUN, "x"], RUN, ["x"]),
    (["--check-hash-based-pycs", "always", "-m", RUN, "x"], RUN, ["x"]),
]


def python(directory, words):
    """Arguments of torch.distributed.run and launch, and of the program in their place."""
    ours = directory / "shims"
    shutil.copytree(SHIM, ours)
    echo(ours, "torchrun")
    package = directory / "torch" / "distributed"
    package.mkdir(parents=True)
    for parent in (package, package.parent):
        script(parent, "", "__init__.py")
    for name in ("run.py", "launch.py"):
        script(
            package, "import sys\n__name__ == '__main__' and print(*sys.argv, sep=chr(10))", name
        )
    done = []
    for libraries in ([directory], [ours, directory]):
        env = with_path(PYTHONPATH=os.pathsep.join(map(str, libraries)))
        process = start(BIN / "python", *words, cwd=directory, env=env, stdin=subprocess.DEVNULL)
        done.append(finish(process).stdout.splitlines())
    return done


@pytest.mark.parametrize("words", PASSED_ON, ids=" ".join)
def test_any_other_call_of_python_is_as_without_it(tmp_path, words):
    script(tmp_path, "import sys\nprint(*sys.argv, sep=chr(10))")
    without, done = python(tmp_path, words)
    assert done == without


@pytest.mark.parametrize(("words", "module", "rest"), TAKEN, ids=lambda x: " ".join(x))
def test_a_call_of_torchs_launcher_is_taken_over(tmp_path, words, module, rest):
    (_, *theirs), done = python(tmp_path, words)
    assert theirs == rest
    in_place = f"--in-place-of={module}:{BIN}/python"
    assert done == [f"{tmp_path}/shims/torchrun", in_place, *rest]


def test_torchrun_finds_the_hpclaunch_that_it_belongs_to(tmp_path):
    """The installation's bin/ comes before PATH, also by links and with spaces."""
    prefix = tmp_path / "a prefix"
    own = prefix / "lib" / "python3.11" / "site-packages" / "hpclaunch" / "shims"
    shutil.copytree(SHIM, own)
    (prefix / "bin").mkdir()
    echo(prefix / "bin", "hpclaunch")
    echo(tmp_path / "another", "hpclaunch")
    (prefix / "lib64").symlink_to("lib")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "torchrun").symlink_to(own / "torchrun")
    (tmp_path / "linked").symlink_to(own)
    system = "/usr/bin:/bin"
    by_lib64 = prefix / "lib64" / own.relative_to(prefix / "lib")
    for place_of_it in (own, by_lib64, tmp_path / "links", tmp_path / "linked"):
        env = environment(PATH=f"{place_of_it}:{tmp_path}/another:{system}")
        done = run("torchrun", "a b", "", cwd=tmp_path, env=env)
        hpclaunch, *words = done.stdout.splitlines()
        assert Path(hpclaunch).samefile(prefix / "bin" / "hpclaunch")
        assert words == ["--in-place-of=torchrun", "a b", ""]
    shutil.rmtree(prefix / "bin")
    done = run("torchrun", cwd=tmp_path, env=environment(PATH=f"{own}:{tmp_path}/another:{system}"))
    assert done.stdout.splitlines()[0] == f"{tmp_path}/another/hpclaunch"
    done = run("torchrun", cwd=tmp_path, env=environment(PATH=f"{own}:{system}"))
    assert (done.returncode, done.stdout) == (127, "")
    assert done.stderr.startswith(f"hpclaunch: error: {own}/torchrun finds no hpclaunch: ")


# Who gets hpclaunch


@pytest.mark.parametrize(
    ("words", "libraries"),
    [
        (["torchrun"], ""),
        (["python3", "-X", "dev", "-m", RUN], SHIM),
        ([sys.executable, "-m", RUN], SHIM),
        ([sys.executable, "-B", f"-um{RUN}"], f"{SITE}:{SHIM}:{SHIM}"),
        ([sys.executable, "-m", LAUNCH, "--use_env"], f"{SHIM}:{SITE}"),
        ([sys.executable, "-B", SHIM / "torchrun"], ""),  # for those who write $(which torchrun)
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, list) else str(value),
)
def test_who_gets_hpclaunch(cwd, words, libraries):
    done = run(*words, "train.py", "environment", cwd=cwd, PYTHONPATH=libraries, PYTHON_EXEC="")
    assert is_hpclaunch(done, cwd)
    assert done.stdout == "rank 0 of 1 environment\n"
    assert "cold start" not in done.stderr  # its interpreter is ours


def test_without_pythonpath_python_is_not_replaced(cwd):
    done = run("python", "-m", RUN, "train.py", "environment", cwd=cwd)
    assert not is_hpclaunch(done, cwd)


def test_the_workers_have_the_interpreter_that_torchrun_would_have(cwd):
    """The interpreter's torch is the user's: hpclaunch may be in an installation of its own."""
    other = cwd / "other env"
    venv.create(other, symlinks=True, with_pip=False)
    python = str(other / "bin" / "python")
    torchrun = script(other / "bin", f"#!{python}\n", "torchrun")
    torchrun.chmod(0o755)
    pips = f"#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\n"
    ways = {
        "torchrun": pips,
        f"{python} -m": "",
        "none of Python's": "#!/bin/sh\n",
    }
    for way, text in ways.items():
        torchrun.write_text(text)
        words = [python, "-m", RUN] if text == "" else ["torchrun"]
        command = [*words, "train.py", "environment"]
        done = run(*command, cwd=cwd, directories=[SHIM, other / "bin"], PYTHONPATH=SHIM)
        executable = report(cwd)["executable"]
        assert is_hpclaunch(done, cwd)
        assert executable == (sys.executable if way == "none of Python's" else python), way
        unknown = f"the Python of {torchrun} is not known: the workers use {sys.executable}, unless"
        assert (unknown in done.stderr) == (way == "none of Python's"), done.stderr


@pytest.mark.parametrize(
    "first",
    [
        "#!{python}",
        "#! {python} -s",
        "#!/usr/bin/env python",
        "#!/usr/bin/env -S python -s",
        "#!/bin/sh\n'''exec' {python} \"$0\" \"$@\"\n' '''",
        "#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''",
        "#!/bin/sh\n'''exec' '{python}' \"$0\" \"$@\"\n' '''",
    ],
)
def test_the_interpreter_in_the_first_line_of_torchrun(tmp_path, monkeypatch, first):
    """A line as pip, uv, or a package of the system or a site writes it."""
    python = script(tmp_path, "", "python")
    python.chmod(0o755)
    torchrun = script(tmp_path, f"{first.format(python=python)}\nimport sys\n", "torchrun")
    monkeypatch.setenv("PATH", f"{SHIM}:{tmp_path}:{os.environ['PATH']}")
    assert program._interpreter_of(str(torchrun)) == str(python)


def test_hpclaunch_takes_these_for_no_other_interpreter(cwd):
    """The workers are forked from a process that has torch, as usual."""
    script(cwd, "import torch, os; print('HPCLAUNCH_STORE' in os.environ)")
    for words, named in ((["hpclaunch", "python3", "-u"], ""), (["torchrun"], "python")):
        path = f"{SHIM}:{LIGHT_TORCH}"
        done = run(*words, "train.py", cwd=cwd, PYTHONPATH=path, PYTHON_EXEC=named)
        assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
        assert "cold start" not in done.stderr


# In PYTHONPATH


def test_other_pythons_are_as_without_it(tmp_path):
    """Several hundred facts of a process, with a user's own sitecustomize, are the same."""
    directory = tmp_path / "the project"
    directory.mkdir()
    (directory / "library").mkdir()
    (directory / "library" / "sitecustomize.py").write_text("import sys; sys.flag = 'users'\n")
    probe = place(directory, "train.py")
    for users in ("", f"{directory}/library"):
        launchers = Launchers(directory, tmp_path / f"left{users and '-users'}")
        launchers.env["PYTHONPATH"] = users
        without = launchers.python(probe, "-m", RUN)
        launchers.env["PYTHONPATH"] = f"{SHIM}:{users}".rstrip(":")
        assert_same(without, launchers.python(probe, "-m", RUN), {"environ.PYTHONPATH"})


# Side by side with torchrun


def side_by_side(torchruns, *words, cwd, module=RUN, given="", environment_of=with_path, **changes):
    """Run the same call of both, each in its own copy of the directory: torch's own is a fork."""
    processes = []
    changes = {"PET_MAX_RESTARTS": "0", **changes}
    command = ["torchrun"] if module == RUN else ["python", "-m", module]
    for directories in ((), (SHIM,)):
        here = cwd / f"both-{len(directories)}"
        here.mkdir()
        script(here, REPORT)
        env = environment_of(*directories, PYTHONPATH="".join(map(str, directories)), **changes)
        if directories:
            process = start(*command, *words, cwd=here, env=env, stdin=subprocess.PIPE)
        else:
            process = torchruns.launch(*words, module=module, cwd=here, env=env)
        processes.append(process)
    return [finish(process, given) for process in processes]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["train.py", "a b", "", "$0", "--lr=3", "--"], 0),
        (["--nproc_per_node=2", "--role", "", "--tee", "3", "train.py"], 0),
        (["--nnodes=1", "--standalone", "--max_restarts", "0", "train.py", "exit"], 1),
        (["train.py", "die"], 1),
        (["nothing.py"], 1),
        (["--no-python", "cat"], 0),
        (["--no-such-option", "train.py"], 2),
        ([], 2),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_a_caller_sees(torchruns, cwd, words, code):
    torchs, ours = side_by_side(torchruns, *words, cwd=cwd, given="standard input\n")
    assert (torchs.returncode, ours.returncode) == (code, code), ours.stderr
    assert sorted(ours.stdout.splitlines()) == sorted(torchs.stdout.splitlines())


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_what_a_caller_sees_that_ends_it(torchruns, cwd, name):
    processes = [
        torchruns.launch("train.py", "wait", cwd=cwd, env=with_path()),
        start("torchrun", "train.py", "wait", cwd=cwd, env=with_path(SHIM)),
    ]
    for process in processes:
        assert process.stdout.readline() == "rank 0 of 1 wait\n"
        os.kill(process.pid, signal.Signals[name])
    torchs, ours = map(finish, processes)
    assert (torchs.returncode, ours.returncode) == (1, 1)
    assert (torchs.stdout, ours.stdout) == ("", "")


@pytest.mark.parametrize("more", [[], ["--use-env"]], ids=" ".join)
def test_torchs_old_launcher(torchruns, cwd, more):
    """Scripts for it take an argument --local-rank."""
    words = ["--nproc_per_node=2", *more, "train.py", "x"]
    torchs, ours = side_by_side(torchruns, *words, module=LAUNCH, cwd=cwd)
    assert (torchs.returncode, ours.returncode) == (0, 0), ours.stderr
    assert sorted(ours.stdout.splitlines()) == sorted(torchs.stdout.splitlines())


OURS_ALONE = {
    *("HPCLAUNCH_CHECKPOINT", "HPCLAUNCH_LOCAL_RANK", "HPCLAUNCH_PROGRESS", "HPCLAUNCH_RUN_ID"),
    "HPCLAUNCH_NOTICE_FILE",
    "HPCLAUNCH_STORE",
}
NOT_THE_SAME = {  # name of a variable: why a worker sees another value
    "GLOO_SOCKET_IFNAME": "gloo would ask the resolver for our own name",
    "TP_SOCKET_IFNAME": "the same",
    "MASTER_ADDR": "an address, which nobody has to resolve",
    "MASTER_PORT": "another one in every launch",
    "TORCHELASTIC_ERROR_FILE": "in the log directory of each",
    "TORCHELASTIC_RUN_ID": "another one in every launch",
    "OMP_NUM_THREADS": "the number of cores in a worker's share, as in docs/slurm.md",
    "PATH": "the shim's directory is in it",
    "PWD": "of the test",
    "PYTHONPATH": "hpclaunch's hooks",
    "_": "of the shell",
}


def test_the_environment_of_workers(torchruns, cwd):
    words = ["--nproc-per-node", "2", "train.py", "environment"]
    torchs, ours = side_by_side(torchruns, *words, cwd=cwd)
    assert (torchs.returncode, ours.returncode) == (0, 0), ours.stderr
    for rank in (0, 1):
        reference, environ = (report(cwd / f"both-{n}", rank)["environ"] for n in (0, 1))
        different = {
            name
            for name in reference.keys() | environ.keys()
            if reference.get(name) != environ.get(name)
        }
        assert different <= OURS_ALONE | NOT_THE_SAME.keys()


RECORDED = """
import os, time
if os.environ["RANK"] != "1":
    time.sleep(600)
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    raise ValueError("of rank 1")

main()
"""


def test_what_ended_a_worker_is_handed_on(torchruns, cwd):
    """The launcher writes it to the file that its own starter named, as torchx does."""
    script(cwd, RECORDED, "recorded.py")
    words = ["--nproc-per-node=2", f"{cwd}/recorded.py"]
    found = []

    def environment_of(*directories, **changes):
        found.append(cwd / f"error-{len(directories)}.json")
        return with_path(*directories, TORCHELASTIC_ERROR_FILE=found[-1], **changes)

    done = side_by_side(torchruns, *words, cwd=cwd, environment_of=environment_of)
    assert [d.returncode for d in done] == [1, 1]
    torchs, ours = (json.loads(file.read_text())["message"] for file in found)
    assert ours["message"] == torchs["message"] == "ValueError: of rank 1"
    assert ours["errorCode"] == torchs["errorCode"] == 1
    assert ours["extraInfo"].keys() == torchs["extraInfo"].keys()


def test_what_an_earlier_launch_recorded_is_not_handed_on(cwd):
    script(cwd, "raise ValueError('of rank 1')", "recorded.py")
    file = cwd / "error.json"
    fixed = {"PET_LOG_DIR": "logs", "PET_MAX_RESTARTS": 0, "TORCHELASTIC_ERROR_FILE": file}
    assert run("torchrun", "recorded.py", cwd=cwd, **fixed).returncode == 1
    assert json.loads(file.read_text())["message"]["message"] == "ValueError: of rank 1"
    file.unlink()
    assert run("torchrun", "train.py", "die", cwd=cwd, **fixed).returncode == 1
    assert not file.exists()


# What is hpclaunch's own


def test_restarts_are_hpclaunchs(cwd):
    done = run("torchrun", "train.py", "die once", cwd=cwd)
    assert done.returncode == 0
    assert done.stdout == "rank 0 of 1 die once\n" * 2
    done = run("torchrun", "train.py", "die once", cwd=cwd, PET_MAX_RESTARTS=0)
    assert done.returncode == 1
    assert "(--max-restarts 0) (exit code 1)" in done.stderr


def test_one_worker_unless_somebody_says_more(cwd):
    done = run("torchrun", "train.py", cwd=cwd, PET_NPROC_PER_NODE=2)
    assert sorted(done.stdout.splitlines()) == ["rank 0 of 2", "rank 1 of 2"]
    namespace = shim.parse(["--in-place-of=torchrun", "train.py"], {}, "")
    assert namespace.nproc_per_node == "1"  # however many GPUs there are


def test_help_and_version(tmp_path):
    done = run("torchrun", "--help", cwd=tmp_path)
    assert done.stdout.startswith("usage: torchrun [options] SCRIPT")
    assert "torchrun is hpclaunch here" in done.stdout
    assert "--use-env" not in done.stdout
    shown = run("python", "-m", LAUNCH, "--help", cwd=tmp_path, PYTHONPATH=SHIM).stdout
    assert shown.startswith("usage: ")
    assert "--use-env" in shown
    assert run("torchrun", "--version", cwd=tmp_path).stdout.startswith("hpclaunch ")


def test_logs_of_a_caller_that_stands_where_nothing_can_be_written(cwd):
    cwd.chmod(0o555)
    try:
        done = run("torchrun", "train.py", cwd=cwd, before=WITHOUT_ROOTS_RIGHTS, TMPDIR="/tmp")
    finally:
        cwd.chmod(0o755)
    assert done.returncode == 0, done.stderr
    said = only(done.stderr, "cannot write to the log")
    logs = Path(said.rpartition(" are in ")[2])
    assert (logs / "round-0" / "rank-0.out").read_text() == "rank 0 of 1\n"
    shutil.rmtree(logs)


# HPCLAUNCH_OPTIONS


def test_options_of_the_user_come_before_the_callers(cwd):
    text = "--checkpoint-dir 'the checkpoints' --nproc=2 --resume-with '--from {checkpoint}'"
    environ = {"PET_NPROC_PER_NODE": "3", "PET_ROLE": "r"}
    chosen = shim.parse(["--in-place-of=torchrun", "train.py", "--nproc=5"], environ, text)
    assert chosen.checkpoint_dir == Path("the checkpoints")
    assert chosen.resume_with == "--from {checkpoint}"
    assert (chosen.nproc_per_node, chosen.role) == ("2", "r")
    assert (chosen.training_script, chosen.training_script_args) == ("train.py", ["--nproc=5"])
    words = ["--in-place-of=torchrun", "--nproc-per-node=4", "train.py"]
    assert shim.parse(words, environ, text).nproc_per_node == "4"
    (cwd / "checkpoints").mkdir()
    options = {shim.OPTIONS: "--checkpoint-dir checkpoints"}
    done = run("torchrun", "train.py", "environment", cwd=cwd, **options)
    assert is_hpclaunch(done, cwd)
    # hpclaunch itself has a command line; what it starts is not to have them either.
    done = run("hpclaunch", "train.py", "environment", cwd=cwd, **{shim.OPTIONS: "--nonsense"})
    assert is_hpclaunch(done, cwd)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("--grace 'x", "No closing quotation"),
        ("--no-such-option", "no option --no-such-option"),
        ("--grace x", "'x' is not a number of seconds"),
        ("--checkpoint-dir", "--checkpoint-dir: expected one argument"),
        ("--checkpoint-dir c train.py", "'train.py' is no option"),
        ("--resume-with '--from {checkpoint}'", "--resume-with needs --checkpoint-dir"),
        ("-h", "with -h nothing would be launched"),
        ("--help-a", "with --help-all nothing would be launched"),
        ("--version", "with --version nothing would be launched"),
        ("--print-completion=zsh", "with --print-completion=zsh nothing would be launched"),
    ],
)
def test_options_that_are_none(cwd, text, says):
    done = run("torchrun", "train.py", cwd=cwd, **{shim.OPTIONS: text})
    assert (done.returncode, done.stdout) == (2, "")
    line = only(done.stderr)
    assert line.startswith(f"hpclaunch: error: {shim.OPTIONS}={text!r}: ")
    assert says in line


# Below a worker

NESTED = """
import os, subprocess, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
ones = torch.tensor([1.0])
dist.all_reduce(ones)
print(*sys.argv[1:], "rank", dist.get_rank(), "of", int(ones[0]), "HPCLAUNCH_STORE" in os.environ)
if len(sys.argv) == 1:
    for words in (["torchrun"], ["python", "-m", "torch.distributed.run"]):
        words += ["--nproc_per_node=2", __file__, words[0]]
        subprocess.run(words, check=True)
    subprocess.run(["python3", "-c", "print('python')"], check=True)
dist.barrier()
dist.destroy_process_group()
"""


def test_a_worker_that_calls_torchrun(cwd):
    script(cwd, NESTED, "nested.py")
    options = {shim.OPTIONS: "--checkpoint-dir checkpoints"}
    done = run("torchrun", "nested.py", cwd=cwd, PYTHONPATH=f"{SHIM}:{LIGHT_TORCH}", **options)
    assert done.returncode == 0, done.stderr
    inner = [f"{name} rank {r} of 2 True" for name in ("torchrun", "python") for r in (0, 1)]
    assert sorted(done.stdout.splitlines()) == sorted(
        [" rank 0 of 1 True".strip(), *inner, "python"]
    )
    assert len(list((cwd / "hpclaunch-logs").iterdir())) == 3


# A tool that calls torchrun itself

TORCHX = BIN / "torchx"
TRAIN = """
import json, os, torch, torch.distributed as dist
dist.init_process_group("gloo")
ones = torch.tensor([1.0])
dist.all_reduce(ones)
restarts = os.environ["TORCHELASTIC_RESTART_COUNT"]
rank, world, ours = dist.get_rank(), int(ones[0]), "HPCLAUNCH_STORE" in os.environ
print(f"rank {rank} of {world} restarts {restarts} hpclaunch {ours}", flush=True)
dist.barrier()
if rank == 1 and restarts == "0":
    os.kill(os.getpid(), 9)
dist.destroy_process_group()
"""


def test_torchx(tmp_path):
    """TorchX's dist.ddp starts torchrun by bash, and reads console lines and the error file."""
    script(tmp_path, TRAIN)
    torchx = [TORCHX, "run", "-s", "local_cwd", "-cfg", f"log_dir={tmp_path}/logs"]
    component = ["dist.ddp", "-j", "1x2", "--script", "train.py"]
    done = run(*torchx, *component, cwd=tmp_path, PYTHONPATH=LIGHT_TORCH)
    assert done.returncode == 0, done.stderr
    for rank in (0, 1):
        for restarts in (0, 1):
            said = f"train/0 [{rank}]:rank {rank} of 2 restarts {restarts} hpclaunch True"
            assert said in done.stderr
    assert "train/0 hpclaunch: rank 1 on" in done.stderr
    script(tmp_path, "raise ValueError('of the script')")
    failing = run(*torchx, *component, cwd=tmp_path)
    assert failing.returncode == 1
    assert "ValueError: of the script" in failing.stderr
    (error,) = tmp_path.glob("logs/**/error.json")
    assert json.loads(error.read_text())["message"]["message"] == "ValueError: of the script"
