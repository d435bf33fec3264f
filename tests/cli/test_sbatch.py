"""`hpclaunch sbatch`: the scripts that it prints, and what it refuses."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from launching import HPCLAUNCH, script

from hpclaunch.cli import main, profiles
from lines import only
from surroundings import environment

PAGE = Path(__file__).parents[2] / "docs" / "slurm.md"
GOLDEN = Path(__file__).parent / "golden"
SAVED = ["--checkpoint-dir", "saved"]
CHAIN = ["--chain", "72", "--", *SAVED]
PRINTS = "import json, sys; print(json.dumps(sys.argv[1:]))"
HOSTILE = ["a b", "it's", '"', "$HOME", "`id`", "$(id)", "a\n#SBATCH --nodes=9", "*", "\\", "", "é"]


@pytest.fixture
def cwd(tmp_path):
    script(tmp_path, "print('ran')")
    return tmp_path


@pytest.fixture
def sbatch(cwd, monkeypatch, capfd):
    """Run the command in this process: (exit code, standard output, standard error)."""
    monkeypatch.chdir(cwd)
    monkeypatch.setattr(sys, "path", list(sys.path))  # the command puts it in order

    def sbatch(*args):
        code = main(["sbatch", *map(str, args)])
        return code, *capfd.readouterr()

    return sbatch


@pytest.fixture
def printed(sbatch):
    """Return a function that runs the command without an error and returns its output."""

    def printed(*args):
        code, out, err = sbatch(*args)
        assert (code, err) == (0, "")
        return out

    return printed


@pytest.mark.starts
@pytest.mark.parametrize("site", ["plain", *profiles.known()])
def test_the_script_of_a_site(printed, site):
    """After a change on purpose, the difference of the golden files shows what users will see."""
    options = ["--profile", site, "--nodes", 2] if site != "plain" else []
    if site not in ("plain", "arc", "engaging"):
        options += ["--account", "def-you"]
    if site == "roihu":
        options += ["--partition", "gpularge"]  # for more than 4 GPUs
    text = printed(*options, "--checkpoint-dir", "saved", "train.py", "--epochs", 3)
    assert text == (GOLDEN / f"{site}.sbatch").read_text()
    assert len(text.splitlines()) < 12
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)


def test_all_that_can_be_asked_for(cwd, printed):
    (cwd / "env" / "bin").mkdir(parents=True)
    (cwd / "env" / "bin" / "activate").touch()
    profile = 'account = true\ngpus = "--gres=gpu:{gpus},nvme:100"\n'
    script(cwd, f'{profile}[[gpu]]\ntype = "a100"\nper_node = 4\ncpus = 32\n', "ours.toml")
    text = printed(
        *("--profile=ours.toml", "--account=project_1", "--partition=gpusmall", "--time=1-12"),
        *("--gpus_per_node=a100:2", "--cpus-per-task=8", "--mem=0"),
        *("--signal=SIGTERM@300", "--requeue", "--modules=python/3.11,cuda", "--venv=env"),
        *("--nnodes", "2:3", "-r", "3", "--", "-t3", "train.py"),
    )
    assert text == (
        "#!/bin/bash\n"
        "#SBATCH --job-name=train --time=1-12\n"
        "#SBATCH --account=project_1 --partition=gpusmall\n"
        "#SBATCH --nodes=3 --ntasks-per-node=1     # one launcher on each\n"
        "#SBATCH --gres=gpu:a100:2,nvme:100        # a node of ours has 4\n"
        "#SBATCH --cpus-per-task=8 --mem=0\n"
        "#SBATCH --no-kill                         # a lost node ends the job otherwise\n"
        "#SBATCH --signal=TERM@300                 # ends the job in order\n"
        "#SBATCH --requeue --open-mode=append      # later runs append to the same output\n"
        "module load python/3.11 cuda\n"
        "source env/bin/activate\n"
        "srun --no-kill --kill-on-bad-exit=0 --wait=0 -c $SLURM_CPUS_PER_TASK "
        "hpclaunch --nnodes 2:3 -r 3 -t3 train.py\n"
    )


def test_the_launchers_options_on_another_run_go_with_those_of_the_job(printed):
    text = printed("--requeue", "--", *SAVED, "--requeue-on", "preemption", "train.py")
    assert "hpclaunch --requeue --checkpoint-dir saved --requeue-on preemption train.py" in text


@pytest.mark.parametrize(
    ("more", "effect"),
    [
        ([], "no effect in the last 20 minutes: the workers get notice anyway"),
        (["--requeue-on", "preemption"], "ends the job in order"),
    ],
)
def test_a_warning_has_no_effect_if_another_run_follows_the_time_limit(printed, more, effect):
    text = printed("--requeue", "--signal", "TERM@300", "--", *SAVED, *more, "train.py")
    assert only(text, "--signal").endswith(f"# {effect}")


def test_a_number_of_gpus_that_only_some_nodes_have(printed):
    text = printed("--profile", "engaging", "--gpus-per-node", 8, "train.py")
    assert "#SBATCH --gpus-per-node=h200:8 " in text


@pytest.mark.parametrize(
    ("options", "no_kill"),
    [
        (["--nnodes", "2:4"], True),
        (["--nnodes", "2", "--nodes", "3"], True),  # with a spare
        (["--nnodes", "2"], False),
        (["--nodes", "4"], False),
        (["--nnodes", "1:1"], False),
    ],
)
def test_a_job_that_continues_without_a_node_is_not_ended_by_slurm(printed, options, no_kill):
    text = printed(*options, "train.py")
    assert ("#SBATCH --no-kill" in text) == ("srun --no-kill" in text) == no_kill


@pytest.mark.parametrize(
    ("option", "last"),
    [
        ("--apptainer", "srun apptainer exec --nv 'an image.sif' hpclaunch inside.py"),
        (
            "--pyxis",
            "srun --container-image='an image.sif' --container-mount-home "
            '--container-mounts="$PWD" --container-workdir="$PWD" hpclaunch inside.py',
        ),
    ],
)
def test_a_container_has_its_own_python(printed, option, last):
    """The container may have the script, too."""
    options = ["--profile", "engaging", "--cpus-per-task", 1, option, "an image.sif"]
    text = printed(*options, "--modules", "apptainer", "inside.py")
    *_, modules, launch = text.splitlines()
    assert modules == "module load apptainer"
    assert launch == last.replace("srun ", "srun -c $SLURM_CPUS_PER_TASK ")
    assert "activate" not in text


@pytest.mark.starts
@pytest.mark.parametrize(
    ("element", "asked"),
    [
        ({}, "71"),
        ({"ARRAY_JOB_ID": "71", "ARRAY_TASK_ID": "4"}, "71_4"),
        ({"ARRAY_JOB_ID": "70", "ARRAY_TASK_ID": "4"}, "71"),
    ],
)
def test_a_container_is_started_again_by_the_script(printed, tmp_path, element, asked):
    """The id of the last element of an array is that of all of them. A job that an element has
    submitted inherits the element's variables.
    """
    text = printed("--requeue", "--apptainer", "an image.sif", "--", *SAVED, "inside.py")
    job = script(tmp_path, text, "job.sh")
    for name, does in (("srun", "exit 75"), ("scontrol", 'echo "$@"')):
        script(tmp_path, f"#!/bin/sh\n{does}\n", name).chmod(0o755)
    variables = {f"SLURM_{name}": value for name, value in element.items()}
    env = environment(PATH=f"{tmp_path}:/bin:/usr/bin", SLURM_JOB_ID="71", **variables)
    done = subprocess.run(["bash", "-u", job], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (75, f"requeue {asked}\n", "")


@pytest.mark.starts
@pytest.mark.parametrize("option", ["--apptainer", "--pyxis"])
@pytest.mark.parametrize("code", [0, 1, 75])
def test_the_chain_of_a_container_is_cancelled_by_the_script(printed, tmp_path, option, code):
    """The exit code is 75 if the next element is to continue."""
    text = printed("--chain", "72", option, "an image.sif", "--", *SAVED, "inside.py")
    job = script(tmp_path, text, "job.sh")
    for name, does in (("srun", f"exit {code}"), ("scancel", 'echo "$@"')):
        script(tmp_path, f"#!/bin/sh\n{does}\n", name).chmod(0o755)
    env = environment(PATH=f"{tmp_path}:/bin:/usr/bin", SLURM_ARRAY_JOB_ID="71")
    done = subprocess.run(["bash", job], env=env, capture_output=True, text=True)
    asked = "" if code == 75 else "--state=PENDING 71\n"
    assert (done.returncode, done.stdout) == (code, asked), done.stderr


def test_what_to_type_for_salloc(printed):
    options = ["--profile", "roihu", "--account", "p", "--interactive", "--gpus-per-node", 1]
    salloc, comment, *shell = printed(*options, "train.py").splitlines()
    assert salloc == (
        "salloc --job-name=train --time=1:00:00 --account=p --partition=gpumedium --nodes=1 "
        "--ntasks-per-node=1 --gres=gpu:gh200:1 --cpus-per-task=72"
    )
    assert comment.startswith("#")
    modules, once, launch = shell
    assert modules == "module load python-pytorch"
    assert once.startswith("# hpclaunch is not in the module; once")
    assert launch == "srun -c $SLURM_CPUS_PER_TASK hpclaunch train.py"


@pytest.mark.starts
def test_words_reach_the_launcher_as_they_are(cwd, printed):
    """Through the shell of the job, which is bash."""
    for name, does in {
        "srun": 'exec "$@"',
        "hpclaunch": f"exec {sys.executable} -X utf8 -c '{PRINTS}' \"$@\"",
    }.items():
        (cwd / "bin").mkdir(exist_ok=True)
        (cwd / "bin" / name).write_text(f"#!/bin/sh\n{does}\n")
        (cwd / "bin" / name).chmod(0o755)
    words = ["--role", "it's $HOME", "--log-dir=a b", "train.py", *HOSTILE, "--nodes", "3", "--"]
    text = printed(*words)
    env = environment(PATH=f"{cwd / 'bin'}:{os.environ['PATH']}")
    done = subprocess.run(["bash"], input=text, env=env, capture_output=True, text=True)
    assert json.loads(done.stdout) == words


@pytest.mark.starts
def test_words_of_another_encoding(cwd):
    done = subprocess.run(
        [HPCLAUNCH, "sbatch", "train.py", b"\xff"], cwd=cwd, env=environment(), capture_output=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(b"hpclaunch train.py '\xff'\n")


def test_a_profile_of_ones_own(cwd, printed):
    (cwd / "here.toml").write_text(
        """
        account = true
        gpus = "--gres=gpu:{gpus} --constraint=fast"
        environment = ["conda activate x"]
        [[gpu]]
        per_node = 8
        """
    )
    text = printed("--profile", "here.toml", "--account", "me", "train.py")
    assert "#SBATCH --gres=gpu:8 --constraint=fast    # a node of here has 8\n" in text
    assert text.endswith("conda activate x\nsrun hpclaunch train.py\n")
    for type_ in ("v100:2", "h100:8", "1g.10gb:2", "a100_3g.20gb:1"):
        options = ["--profile", "here.toml", "--account", "me", "--gpus-per-node", type_]
        text = printed(*options, "train.py")
        assert f"--gres=gpu:{type_} " in text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("account = 3", "Expected `bool`, got `int` - at `$.account`"),
        ("acount = true", "unknown field `acount`"),
        ("[[gpu]]\nper_node = 0", ">= 1 - at `$.gpu[0].per_node`"),
        ("memory_per_gpu = '4 GB'", "at `$.memory_per_gpu`"),
        ("gpus = '--gres=gpu:4'", "gpus = '--gres=gpu:4' lacks {gpus}"),
        ("activate = 'conda activate'", "lacks {venv}"),
        ("account =", "Invalid value"),
        (b"\xff", "utf-8"),
    ],
)
def test_a_profile_with_a_mistake(cwd, sbatch, text, says):
    (cwd / "my.toml").write_bytes(text if isinstance(text, bytes) else text.encode())
    code, out, err = sbatch("--profile", "my.toml", "train.py")
    assert (code, out) == (2, "")
    assert err.startswith("hpclaunch: error: --profile my.toml: ")
    assert says in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([], "no training script"),
        (["--nodes", "2"], "no training script"),
        (["missing.py"], "no script missing.py in "),
        (
            ["--profile", "narvall", "train.py"],
            "arc, engaging, lumi, narval, roihu",
        ),
        (["--profile", ".", "train.py"], "--profile .: Is a directory"),
        (["--profile", "narval", "train.py"], "jobs on narval need an account: --account NAME"),
        (
            ["--profile", "arc", "--gpus-per-node", "3", "train.py"],
            "--gpus-per-node 3: a node of arc has at most 2; use more --nodes",
        ),
        (
            ["--profile", "roihu", "--account", "p", "--nodes", "2", "train.py"],
            "2 x 4 GPUs: a job in gpumedium of roihu has at most 4; name another --partition",
        ),
        (["--profile", "arc", "--gpus-per-node", "a100:2", "train.py"], "a100:2: arc has v100"),
        (["--gpus-per-node", "all", "train.py"], "'all' is not a number of GPUs, such as 4 or"),
        (["--gpus-per-node", "0", "train.py"], "'0' is not a number of GPUs"),
        (["--time", "1h", "train.py"], "'1h' is not a time limit: minutes, "),
        (["--time", "1:2:3:4", "train.py"], "'1:2:3:4' is not a time limit"),
        (["--mem", "4 GB", "train.py"], "'4 GB' is not an amount of memory, such as 64G"),
        (["--nodes", "-1", "train.py"], "'-1' is not a whole number, 1 or more"),
        (["--nodes"], "--nodes: expected one argument"),
        (["--nodes", "2", "--nnodes", "3:4", "train.py"], "--nodes 2, but --nnodes wants 3"),
        (["--account", "a\n#SBATCH -w x", "train.py"], "is not a name"),
        (["--partition", "", "train.py"], "'' is not a name"),
        (["--signal", "B:USR1@60", "train.py"], "the batch shell only: leave B: out"),
        (["--signal", "KILL@60", "train.py"], "one of USR1, USR2, TERM, INT, HUP, QUIT"),
        (["--signal", "USR1", "train.py"], "'USR1' is not NAME@SECONDS"),
        (["--venv", "none", "train.py"], "--venv none: no virtual environment"),
        (["--submit", "--interactive", "train.py"], "--submit and --interactive contradict"),
        (["--requeue", "--interactive", "train.py"], "--requeue and --interactive contradict"),
        (
            ["--interactive", "--", "--requeue", *SAVED, "train.py"],
            "--requeue and --interactive contradict",
        ),
        ([*CHAIN, "--requeue", "train.py"], "--chain and --requeue contradict"),
        (["--chain", "24", *SAVED, "--notice", "off", "train.py"], "--chain with --notice off"),
        (["--requeue", "--", "--chain", *SAVED, "train.py"], "--chain and --requeue contradict"),
        (["--chain", "1e306", *SAVED, "train.py"], "'1e306' is not a number of hours"),
        (["--chain", "nan", *SAVED, "train.py"], "'nan' is not a number of hours"),
        (["--venv", "v", "--pyxis", "i", "train.py"], "--venv and --pyxis contradict"),
        (["--node", "2", "train.py"], "no option --node, here or of the launcher"),
        (["-N", "2", "train.py"], "no option -N: write --nodes (see hpclaunch sbatch --help)"),
        (["-pgpu", "train.py"], "no option -p: write --partition (see"),
        (["--qos", "high", "train.py"], "of Slurm's, add an #SBATCH line to the printed script"),
        (["--acount", "a", "train.py"], "of the launcher: did you mean --account? (see"),
        (["--nporc", "2", "train.py"], "of the launcher: did you mean --nproc? (see"),
        (["--gpus_per_nod=2", "train.py"], "did you mean --gpus_per_node or --gpus_per_worker?"),
        (["--nproc", "two", "train.py"], "'two' is not a number of workers"),
        (["--nproc", "2", "-"], "a job script has no standard input: write SCRIPT to a file"),
        (["--resume-with", "{}", "train.py"], "--resume-with '{}': {} is not replaced"),
        (["--", "--nodes", "2", "train.py"], "no option --nodes"),
        (
            ["--nodes", "2", "--stage", "--checkpoint-local", *SAVED, "train.py"],
            "--stage on several nodes needs a --checkpoint-dir that all of them see",
        ),
    ],
)
def test_a_mistake_is_one_line(sbatch, args, says):
    code, out, err = sbatch(*args)
    assert (code, out) == (2, "")
    assert err.startswith("hpclaunch: error: ")
    assert says in err
    assert len(err.splitlines()) == 1


def test_an_environment_of_conda_needs_a_profile_that_can_activate_it(cwd, sbatch):
    (cwd / "torch" / "conda-meta").mkdir(parents=True)
    (cwd / "my.toml").write_text("activate = 'source activate {venv}'")
    code, out, err = sbatch("--venv", "torch", "train.py")
    assert (code, out) == (2, "")
    assert "an environment of conda, for which the site's profile has no `activate`" in err
    code, out, _ = sbatch("--profile", "my.toml", "--venv", "torch", "train.py")
    assert code == 0
    assert "\nsource activate torch\n" in out


@pytest.mark.starts
@pytest.mark.parametrize(
    ("does", "says"),
    [
        (None, "cannot start sbatch (No such file or directory): use --submit where jobs are"),
        (
            "echo sbatch: error: invalid account >&2; exit 1",
            "did not take the job: invalid account",
        ),
    ],
)
def test_a_job_that_cannot_be_submitted(cwd, sbatch, monkeypatch, does, says):
    bin_ = cwd / "bin"
    bin_.mkdir()
    if does:
        (bin_ / "sbatch").write_text(f"#!/bin/sh\n{does}\n")
        (bin_ / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", str(bin_))
    code, out, err = sbatch("--submit", "train.py")
    assert (code, out) == (2, "")
    assert says in err
    assert len(err.splitlines()) == 1


@pytest.mark.starts
def test_a_job_that_was_started_again_submits_one_that_was_not(cwd, sbatch, monkeypatch):
    (cwd / "bin").mkdir()
    (cwd / "bin" / "sbatch").write_text('#!/bin/sh\necho "${SLURM_RESTART_COUNT-none} $OF_USER"\n')
    (cwd / "bin" / "sbatch").chmod(0o755)
    for name, value in ("PATH", str(cwd / "bin")), ("SLURM_RESTART_COUNT", "1"), ("OF_USER", "x"):
        monkeypatch.setenv(name, value)
    assert sbatch("--submit", "train.py") == (0, "none x\n", "")


def test_a_directory_called_sbatch_is_no_script(cwd, printed):
    (cwd / "sbatch").mkdir()
    assert "srun hpclaunch train.py" in printed("train.py")


@pytest.mark.starts
def test_it_starts_without_what_only_a_launch_needs(cwd):
    code = """
import sys
from hpclaunch.cli import main
main(["sbatch", "--profile", "arc", "train.py"])
heavy = {"torch", "zmq", "psutil", "pynvml", "rich", "numpy"} & set(sys.modules)
sys.exit(f"imported: {heavy}" if heavy else 0)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_every_option_is_documented(in_process, cwd):
    done = in_process("sbatch", "--help", cwd=cwd)
    assert done.returncode == 0
    options = set(re.findall(r"^  (--[a-z-]+)", done.stdout, re.MULTILINE))
    page = PAGE.read_text()
    assert sorted(options) == sorted(re.findall(r"^\| `(--[a-z-]+)", page, re.MULTILINE))
    assert ", ".join(f"`{site}`" for site in profiles.known()) in page
