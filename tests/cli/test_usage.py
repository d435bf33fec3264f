"""A user's mistake is one clear line and exit code 2, without a traceback."""

import os
import re
import shutil
import signal
import subprocess
import sys

import pytest
from launching import HPCLAUNCH, hpclaunch, script

from hpclaunch.cli import COMMANDS, shim
from lines import only
from surroundings import environment

# For root the modes of files mean nothing unless these two capabilities are gone.
WITHOUT_ROOTS_RIGHTS = (
    ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
)
ELF = shutil.which("env")  # in no language that has a source


@pytest.fixture
def cwd(tmp_path):
    script(tmp_path, "print('ran')")
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nowhere")
    script(tmp_path, "#!/bin/sh\necho ran\n", "tool").chmod(0o755)
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    script(tmp_path, "#!/usr/bin/env python3\n", "venv/bin/torchrun")
    script(tmp_path, "#!/usr/bin/env -S bash -e\nif true; then python3 x; fi\n", "tool2")
    return tmp_path


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([], "no training script: hpclaunch [options] SCRIPT"),
        (["", "--lr", "1"], "no training script: hpclaunch [options] SCRIPT"),
        (["missing.py"], "no script missing.py in "),
        (
            ["state"],
            ", and no such command: the commands are checkpoints, doctor, logs, notice, replay, "
            "report, restart, sbatch, shim, stacks, status, stop, top",
        ),
        (["--nproc", "2", "state"], "no script state in "),
        (["--nproc", "2", "doctor"], "; the command doctor comes first: hpclaunch doctor"),
        (["--nporc", "2", "train.py"], "no option --nporc: did you mean --nproc?"),
        (["."], ". is a directory, not a script"),
        (["--requeue-on=preemption", "train.py"], "another run follows: add --requeue or --chain"),
        (
            ["--chain", "--notice=off", "--checkpoint-dir=.", "train.py"],
            "--chain with --notice off: without asking Slurm when it ends the job",
        ),
        (["--stage", "train.py"], "--stage needs --checkpoint-dir, to know where the script saves"),
        (
            ["--stage", "--checkpoint-dir", ".", "train.py"],
            "contains the working directory, so every file would belong to it",
        ),
        (
            ["--stage=nowhere", "--checkpoint-dir", "saved", "train.py"],
            "--stage=nowhere: there is no such directory",
        ),
        (
            ["--nproc", "0", "train.py"],
            "--nproc/--nproc-per-node: '0' is not a number of workers above 0",
        ),
        (["--nproc", "-1", "train.py"], "'-1' is not a number of workers above 0"),
        (["--nproc", "two", "train.py"], "'two' is not a number of workers above 0"),
        (["--nproc", "gpu", "train.py"], "--nproc gpu, but no GPU is visible here"),
        (
            ["--max-restarts", "-1", "train.py"],
            "--max-restarts: '-1' is not a whole number, 0 or more",
        ),
        (["--max-restarts", "x", "train.py"], "--max-restarts: 'x' is not a whole number"),
        (["--grace", "nan", "train.py"], "'nan' is not a number of seconds"),
        (["--hang-timeout", "x", "train.py"], "'x' is neither auto, off nor a number of seconds"),
        (["--hang-timeout", "-5", "train.py"], "'-5' is neither auto, off nor a number"),
        (["--hang-timeout", "nan", "train.py"], "'nan' is neither auto, off nor a number"),
        (["--hang-timeout", "0", "train.py"], "must be at least 2 s, not 0"),
        (["--hang-timeout", "1.9", "train.py"], "must be at least 2 s, not 1.9"),
        (["--progress", "some", "train.py"], "--progress: invalid choice: 'some'"),
        (["--no-such-option", "train.py"], "no option --no-such-option"),
        (["--log-dir", "file/logs", "train.py"], "cannot write to the log directory file/logs"),
        (["--checkpoint-dir", "file", "train.py"], "--checkpoint-dir file is not a directory"),
        (["--checkpoint-dir", "link", "train.py"], "--checkpoint-dir link is not a directory"),
        (["--resume-with"], "--resume-with: expected one argument"),
        (["bash"], "for the program bash, add --no-python"),
        (["python"], "no script after python"),
        (["python3", "-u", "missing.py"], "no script missing.py in "),
        (["torchrun", "train.py"], "hpclaunch takes the place of torchrun: leave that out"),
        (["venv/bin/torchrun", "train.py"], "takes the place of torchrun: leave that out"),
        (["python", "/bin/torchrun", "train.py"], "takes the place of torchrun: leave that out"),
        (["accelerate", "launch", "train.py"], "takes the place of accelerate launch: leave that"),
        (["--nproc", "2", "deepspeed", "train.py"], "takes the place of deepspeed: leave that out"),
        (["mpirun", "-np", "4", "train.py"], "takes the place of mpirun: leave that out"),
        (["trl", "sft"], "trl starts accelerate launch: write -m trl.scripts.sft for trl sft"),
        (["bin/tune", "run", "lora"], "tune run starts torchrun: write the recipe's file (tune cp"),
        (["srun", "train.py"], "write srun before hpclaunch"),
        (["-m", "torch.distributed.run", "train.py"], "takes the place of torch.distributed.run"),
        (["python", "-m", "torch.distributed.launch"], "takes the place of torch.distributed"),
        (["-m", "accelerate.commands.launch"], "takes the place of accelerate.commands.launch"),
        (["--use_env", "train.py"], "no option --use_env: leave it out: every worker has LOCAL_"),
        (["--num_gpus", "2", "train.py"], "no option --num_gpus: write --nproc N"),
        (["--num-processes=2", "train.py"], "no option --num-processes: write --nproc N"),
        (["--num_machines", "2", "train.py"], "no option --num_machines: write --nnodes N, or not"),
        (["--machine_rank", "1", "train.py"], "no option --machine_rank: write --node-rank R"),
        (["--main_process_ip", "h", "train.py"], "--main_process_ip: write --master-addr HOST"),
        (["--multi_gpu", "train.py"], "no option --multi_gpu: leave it out"),
        (["--gpus", "4", "train.py"], "no option --gpus: write --nproc N"),
        (["--gpus-per-node=4", "train.py"], "no option --gpus-per-node: write --nproc N"),
        (["-np", "4", "train.py"], "no option -np: write --nproc N, the number of workers on each"),
        (["-N", "4", "train.py"], "no option -N: write --nnodes N, or nothing under srun"),
        (["-m", "train.py"], "-m takes the name of a module, not a file"),
        (["--no-python", "-m", "train"], "--no-python and -m contradict each other"),
        (["--no-python", "missing"], "no program missing in "),
        (["--no-python", "train.py"], "train.py may not be executed: chmod +x train.py"),
        (["--no-python", "tool"], "tool is not in PATH: write ./tool"),
        (["tool"], "tool is not a Python script: add --no-python"),
        (["tool2"], "tool2 is not a Python script: add --no-python"),
        ([ELF], f"{ELF} is not a Python script: add --no-python"),
        (["--node-rank", "1", "train.py"], "--node-rank 1 needs --nnodes"),
        (["--nnodes", "2", "train.py"], "where do the machines meet?"),
        (["--nnodes", "2", "--node-rank", "2", "train.py"], "--node-rank 2, but --nnodes 2"),
        (["--nnodes", "2", "--rdzv-backend", "etcd", "train.py"], "--rdzv-backend etcd is not"),
        (["--nnodes", "2", "--rdzv-backend", "c10d", "train.py"], "needs --rdzv-endpoint"),
        (["--rdzv-conf", "join_timeout=x", "train.py"], "join_timeout=x: not a number of seconds"),
        (["--logs-specs", "mine", "train.py"], "--logs-specs mine: torchrun's plugins"),
        (["--tee", "0:9", "train.py"], "--tee '0:9'"),
        (["--local-ranks-filter", "a", "train.py"], "--local-ranks-filter 'a'"),
        (
            ["--checkpoint-dir", "c", "--resume-with=--resume {chekpoint}", "train.py"],
            "'--resume {chekpoint}': {chekpoint} is not replaced: write {checkpoint} for the path",
        ),
        (
            ["--checkpoint-dir", "c", "--resume-with=--resume '{checkpoint}", "train.py"],
            "No closing quotation",
        ),
        (["--resume-with=--resume {checkpoint}", "train.py"], "needs --checkpoint-dir"),
    ],
)
def test_a_mistake(in_process, cwd, args, says):
    if "gpu" in args and os.path.exists("/proc/driver/nvidia"):
        pytest.skip("there is a GPU here")
    done = in_process(*args, cwd=cwd)
    assert done.returncode == 2
    line = only(done.stderr)
    assert line.startswith("hpclaunch: error: ")
    assert says in line
    assert done.stdout == ""


@pytest.mark.parametrize("name", ["train2.py", "src/train", "./train", "train.sh", "v2"])
def test_what_looks_like_a_file_is_missed_as_one(in_process, cwd, name):
    done = in_process(name, cwd=cwd)
    assert done.returncode == 2
    assert done.stderr == f"hpclaunch: error: no script {name} in {cwd}\n"


@pytest.mark.starts
def test_a_job_of_several_nodes_without_srun(cwd):
    env = environment(SLURM_JOB_ID=7, SLURM_JOB_NUM_NODES=2, SLURM_JOB_NODELIST="n[1-2]")
    done = hpclaunch("train.py", cwd=cwd, env=env)
    assert done.returncode == 2
    line = only(done.stderr)
    assert "prefix with srun" in line


@pytest.mark.parametrize(("within", "lines"), [("7.1", 0), ("7.0", 1)])
def test_one_task_of_a_step_says_it_and_every_launcher_in_a_worker(in_process, cwd, within, lines):
    step = {"SLURM_JOB_ID": 7, "SLURM_STEP_ID": 0, "SLURM_PROCID": 3}
    done = in_process("--grow", cwd=cwd, env=environment(**step, HPCLAUNCH_STEP=within))
    assert (done.returncode, done.stderr.count("\n")) == (2, lines)


def test_an_interpreter_that_is_none(in_process, cwd):
    done = in_process("train.py", cwd=cwd, env=environment(PYTHON_EXEC="/no/such/python"))
    assert done.returncode == 2
    line = only(done.stderr)
    assert "PYTHON_EXEC=/no/such/python is not a program" in line


def test_a_working_directory_without_room_for_logs(in_process, cwd):
    (cwd / "hpclaunch-logs").touch()
    done = in_process("train.py", cwd=cwd)
    assert done.returncode == 2
    line = only(done.stderr)
    assert "cannot write to the log directory hpclaunch-logs" in line
    assert line.endswith("; give another directory with --log-dir")


@pytest.mark.starts
@pytest.mark.parametrize(
    ("closed", "args", "says"),
    [
        ("logs", ["--log-dir", "logs", "train.py"], "cannot write to the log directory logs"),
        ("points", ["--checkpoint-dir", "points", "train.py"], "cannot read the checkpoint dir"),
        ("secret.py", ["secret.py"], "cannot read the script secret.py: permission denied"),
    ],
)
def test_what_may_not_be_read_or_written(cwd, closed, args, says):
    path = cwd / closed
    path.touch() if path.suffix else path.mkdir()
    path.chmod(0o000)
    done = hpclaunch(*args, cwd=cwd, before=WITHOUT_ROOTS_RIGHTS)
    path.chmod(0o700)
    assert done.returncode == 2
    line = only(done.stderr)
    assert says in line


@pytest.mark.starts
def test_a_name_in_another_encoding_is_shown_as_it_is(cwd):
    name = os.fsdecode(b"gr\xf6\xdfe.py")  # in Latin-1
    done = hpclaunch(name, cwd=cwd, errors="surrogateescape")
    assert done.returncode == 2
    assert done.stderr == f"hpclaunch: error: no script {name} in {cwd}\n"


@pytest.mark.starts
def test_a_name_is_no_command_for_a_terminal(cwd):
    done = hpclaunch("\x1b[31mred\nhpclaunch: well\x9b.py", cwd=cwd)
    assert done.returncode == 2
    assert done.stderr == (
        f"hpclaunch: error: no script ?[31mred\n  hpclaunch: well?.py in {cwd}\n"
    )


def test_help_and_version(in_process, cwd):
    assert "--max-restarts" in in_process("--help", cwd=cwd).stdout
    assert in_process("--version", cwd=cwd).stdout.startswith("hpclaunch ")


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_is_one_page_with_an_example(in_process, cwd, name):
    done = in_process(name, "--help", cwd=cwd, env={"COLUMNS": "80"})
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert len(lines) <= 60
    assert max(map(len, lines)) <= 80
    assert [line for line in lines if re.match(rf"    .*\bhpclaunch {name}\b", line)]


@pytest.mark.starts
def test_help_does_not_load_the_agent(cwd):
    done = subprocess.run(
        [HPCLAUNCH, "--help"],
        env=environment(PYTHONPROFILEIMPORTTIME=1),
        capture_output=True,
        text=True,
        check=True,
    )
    assert "argparse" in done.stderr
    for heavy in ("zmq", "psutil", "pynvml", "torch"):
        assert f" {heavy}\n" not in done.stderr


@pytest.mark.starts
@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("--nproc 1", 2),
        ("--stage --checkpoint-dir saved", 2),
        ("sbatch", 2),
        (f"{shim.WORD}torchrun", 1),
    ],
)
def test_a_directory_that_is_gone(tmp_path, words, code):
    gone = tmp_path / "gone"
    gone.mkdir()
    line = f"cd '{gone}'; rmdir '{gone}'; {HPCLAUNCH} {words} train.py"
    env = environment(**{shim.OPTIONS: "--max-restarts 1"})
    done = subprocess.run(["bash", "-c", line], env=env, capture_output=True, text=True)
    why = "the directory in which hpclaunch was started no longer exists: cd elsewhere"
    assert (done.returncode, done.stderr) == (code, f"hpclaunch: error: {why}\n")


class Interrupted:
    """An import that the user interrupts."""

    def find_spec(self, name, *_):
        if name == "hpclaunch.cli.command_line":
            raise KeyboardInterrupt


def test_ctrl_c_during_the_imports(in_process, cwd, monkeypatch):
    monkeypatch.delitem(sys.modules, "hpclaunch.cli.command_line", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupted(), *sys.meta_path])
    done = in_process("status", cwd=cwd)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


PRINTING = [
    *(["checkpoints", "."], ["sbatch", "train.py"], ["shim"], ["status", "--help"]),
    *(["--help"], ["--help-all"], ["--version"], ["--print-completion", "zsh"]),
]


@pytest.mark.starts
@pytest.mark.parametrize("words", PRINTING, ids=" ".join)
def test_a_command_whose_output_nobody_reads(cwd, words):
    """The reader may have ended, as in `hpclaunch checkpoints . | head -1`."""
    (cwd / "train.py").touch()
    reading, writing = os.pipe()
    os.close(reading)
    pipes = {"stdout": writing, "stderr": subprocess.PIPE}
    done = subprocess.run([HPCLAUNCH, *words], cwd=cwd, env=environment(), **pipes)
    os.close(writing)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, b"")


CLOSED = "standard output is closed"
NO_ROOM = "cannot write to standard output: No space left on device"


@pytest.mark.starts
@pytest.mark.parametrize("words", PRINTING, ids=" ".join)
@pytest.mark.parametrize(("where", "why"), [(">&-", CLOSED), (">/dev/full", NO_ROOM)])
def test_a_command_whose_output_cannot_be_written(cwd, words, where, why):
    (cwd / "train.py").touch()
    command = ["bash", "-c", f'"$@" {where}', "bash", HPCLAUNCH, *words]
    done = subprocess.run(command, cwd=cwd, env=environment(), stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (2, f"hpclaunch: error: {why}\n")


# Another user, since root has no such limit; it may read this Python wherever that is.
WITHOUT_PROCESSES = (
    *("setpriv", "--reuid=65533", "--clear-groups"),
    *("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"),
    *("bash", "-c", 'ulimit -u 1; exec "$@"', "bash"),
)


@pytest.mark.starts
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
def test_no_further_process_is_allowed(tmp_path):
    done = hpclaunch("--nproc=1", script(tmp_path, ""), cwd=tmp_path, before=WITHOUT_PROCESSES)
    assert done.returncode == 2, done.stderr
    line = only(done.stderr)
    assert "cannot start the launcher's own processes: Resource temporarily unavailable" in line
