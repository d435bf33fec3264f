"""The options, side by side with those of the torch that is installed, whichever it is."""

from __future__ import annotations

import ast
import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from launching import hpclaunch

from hpclaunch.cli import COMMANDS, help_page, other_launchers, values
from hpclaunch.cli.options import build_parser
from hpclaunch.core.protocol.errors import UsageError
from lines import only
from surroundings import environment

OURS = build_parser({}).ours
TABLE = Path(__file__).parents[2] / "docs" / "options.md"

pytestmark = pytest.mark.torch

# Prints what torch's parser knows, and what it makes of each command line on standard input.
TORCH = """
import contextlib, json, os, sys
import torch
from torch.distributed.argparse_util import check_env, env
from torch.distributed.run import get_args_parser

def parse(words):
    try:
        with contextlib.redirect_stdout(None), contextlib.redirect_stderr(None):
            return vars(parser.parse_args(words))
    except SystemExit:
        return None

parser = get_args_parser()
options = [
    {
        "names": a.option_strings,
        "dest": a.dest,
        "default": a.default,
        "choices": a.choices and list(a.choices),
        "kind": a.type.__name__ if a.type else None,
        "flag": a.nargs == 0,
        "variable": isinstance(a, (env, check_env)),
    }
    for a in parser._actions if a.dest not in ("help", "print_completion")  # which exit
]
for lines in sys.stdin:
    parsed = [parse(line) for line in json.loads(lines)]
    answer = {"torch": torch.__version__, "options": options, "parsed": parsed}
    answer["help"] = parser.format_help()
    print(json.dumps(answer), flush=True)
"""

# Torchrun's parser removes a `--` that is next to the script, unless there was one before it.
DOUBLE_DASHES = (
    "train.py --",
    "train.py -- --lr 1",
    "-m train -- --lr 1",
    "--role r train.py -- a -- b",
    "--no-python ./run -- a",
    "- -- a",
    "train.py -- -- a",
    "train.py a -- b",
    "train.py a --",
    "train.py - -- a",
    "train.py --standalone -- a",
    "-- train.py -- a",
    "-- train.py a -- b",
    "--role r -- train.py -- -- a",
    "-- -- a",
)
# What stands after `torchrun` or `python -m torch.distributed.run` in the instructions of projects.
OF_PROJECTS = (
    "--standalone --nproc_per_node=8 train.py config/train_gpt2.py",  # nanoGPT
    "--nproc_per_node=8 --nnodes=2 --node_rank=0 --master_addr=n1 --master_port=1234 train.py",
    "--nproc_per_node 4 -m open_clip_train.main -- --train-data x --precision amp",  # open_clip
    "--nproc_per_node=8 --rdzv_backend c10d --rdzv_endpoint=localhost:0 --local-ranks-filter 0 "
    "--role rank --tee 3 -m torchtitan.train --job.config_file llama.toml",
    "--nnodes 4 --nproc_per_node 8 --rdzv_id 101 --rdzv_backend c10d --rdzv_endpoint n1:29500 "
    "-m torchtitan.train --module llama3",
    "--nnodes=1 --node_rank=0 --master_addr=127.0.0.1 --nproc_per_node=8 --master_port=29500 "
    "tools/train.py configs/mask_rcnn.py --launcher pytorch --seed 0",  # mmdetection
    "--nproc_per_node 8 --nnodes 1 --node_rank 0 --master_addr localhost --master_port 6000 "
    "pretrain_gpt.py --num-layers 24 --tensor-model-parallel-size 2",  # Megatron-LM
    "--nproc_per_node=4 --master_port=20001 fastchat/train/train_mem.py --fsdp full_shard",
    "--nproc_per_node 2 --master_port 1 train.py --batch 64 --device 0,1",  # YOLOv5
    "--nproc_per_node 2 ./nlp_example.py",  # Accelerate
    "--nproc_per_node=gpu --nnodes=1:4 --max_restarts=3 --rdzv_id=7 --rdzv_backend=c10d "
    "--rdzv_endpoint=n1:29400 multigpu_torchrun.py 50 10",
    "--nnode 1 --nproc_per 2 --log_dir logs -r 3 -t 0:3 main.py",
    "--nproc_per_node 8 --use_env run_glue.py",  # of torch.distributed.launch only
)
COMPLETION = ("--print-completion", "--print_completion")

# What torch's parser leaves open and torchrun fills in.
TORCH_FILLS_IN = {"master_port": 29500, "shutdown_timeout": 30}

# A value for each option, as torch's parser keeps it and as ours does.
SAMPLES = {
    "nnodes": ("2:3", (2, 3)),
    "nproc_per_node": ("7", "7"),
    "rdzv_backend": ("c10d", "c10d"),
    "rdzv_endpoint": ("n1:29400", "n1:29400"),
    "rdzv_id": ("id", "id"),
    "rdzv_conf": ("a=b,c=d", {"a": "b", "c": "d"}),
    "max_restarts": ("7", 7),
    "monitor_interval": ("0.5", 0.5),
    "start_method": ("fork", "fork"),
    "event_log_handler": ("console", "console"),
    "role": ("trainer", "trainer"),
    "log_dir": ("logs", Path("logs")),
    "redirects": ("0:1,1:2", "0:1,1:2"),
    "tee": ("3", "3"),
    "local_ranks_filter": ("0,2", "0,2"),
    "log_line_prefix_template": ("${rank}: ", "${rank}: "),
    "duplicate_stdout_filters": ("a,b,,c", ("a", "b,c")),
    "duplicate_stderr_filters": ("a", ("a",)),
    "node_rank": ("1", 1),
    "master_addr": ("n1", "n1"),
    "master_port": ("29501", 29501),
    "local_addr": ("n2", "n2"),
    "logs_specs": ("default", "default"),
    "numa_binding": ("core-complex", "core-complex"),
    "signals_to_handle": ("SIGTERM,SIGUSR1", (signal.SIGTERM, signal.SIGUSR1)),
    "shutdown_timeout": ("5", 5.0),
}


def parse(*words, **environ):
    return vars(build_parser(environ).parse_args(words))


def test_the_home_directory_in_a_path(monkeypatch):
    """A shell replaces the ~ of `--log-dir ~/logs`, but not that of `--log-dir=~/logs`."""
    monkeypatch.setenv("HOME", "/home/me")
    options = parse("--log-dir=~/logs", "--checkpoint-dir=~/ck*", "--stage=~/fast", "train.py")
    named = [options[name] for name in ("log_dir", "checkpoint_dir", "stage")]
    assert [*map(str, named)] == ["/home/me/logs", "/home/me/ck*", "/home/me/fast"]
    assert str(parse("--log-dir=~no such user/x", "train.py")["log_dir"]) == "~no such user/x"


@pytest.fixture(scope="module")
def ask_torch(starts):
    """Return a function that has torch's parser read lines, in a process that lasts."""
    command, pipe = [sys.executable, "-c", TORCH], subprocess.PIPE
    with subprocess.Popen(
        command, env=environment(), stdin=pipe, stdout=pipe, text=True
    ) as process:

        def ask(lines=()):
            print(json.dumps(lines), file=process.stdin, flush=True)
            return json.loads(process.stdout.readline())

        yield ask
    assert process.returncode == 0


@pytest.fixture(scope="module")
def torchs_answer(ask_torch):
    return ask_torch()


@pytest.fixture(scope="module")
def torch_options(torchs_answer):
    return torchs_answer["options"]


@pytest.fixture(scope="module")
def optional(torch_options):
    return [option for option in torch_options if option["names"]]


@pytest.fixture(scope="module")
def torchs(optional, torchs_answer, table):
    """Return every spelling that torch's parser knows, or that of a later torch."""
    here = version(torchs_answer["torch"])
    later = {name for name, row in table.items() if row[5] and version(row[5]) > here} - OURS
    own = {name for option in optional for name in option["names"]}
    assert own.isdisjoint(later), f"{TABLE.name} has these as those of a later torch"
    return own | later | {"-h", "--help"} | ({*COMPLETION} if here >= (2, 14) else set())


def version(text):
    return tuple(map(int, text.split("+")[0].split(".")[:2]))


@pytest.fixture(scope="module")
def table():
    """The rows by each spelling: (all spellings, variable, torchrun's default, ours, status, the
    torch that has it first)."""
    rows = {}
    for line in TABLE.read_text().partition("\n## Options\n")[2].splitlines():
        if line.startswith("| `"):
            names, *rest = (cell.strip() for cell in line.strip("|").split(" | "))
            names = re.findall(r"`(.+?)`", names)
            for name in names:
                assert name not in rows
                rows[name] = (names, *rest)
    return rows


@pytest.fixture
def help_text(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    return build_parser({}).format_help()


def ours():
    """Return the spellings with dashes of each of our options, by dest."""
    found = {}
    for name, action in build_parser({}).options.items():
        found.setdefault(action.dest, []).append(name)
    return found


def written(default):
    """Return a default as the table has it."""
    if default is None or default == "" or default == () or default == []:
        return "none"
    if default is False:
        return "off"
    if isinstance(default, tuple):
        return f"`{','.join(getattr(s, 'name', s) for s in default)}`"
    return f"`{default:g}`" if isinstance(default, float) else f"`{default}`"


@pytest.mark.starts
class TestBesideTorch:
    """A new torch with a new option fails here, and is named."""

    def test_torchruns_help_names_no_other(self, torchs_answer, table):
        heads = re.findall(r"^  (-.+?)(?:  |$)", torchs_answer["help"], re.MULTILINE)
        named = {name for head in heads for name in re.findall(r"(?<![\w-])--?[a-z_-]+", head)}
        assert len(named) > 40
        assert not named - table.keys(), f"options of this torchrun that {TABLE.name} lacks"

    def test_every_option_of_torchs_is_known(self, torch_options):
        known = parse("train.py")
        missing = [o["names"] or o["dest"] for o in torch_options if o["dest"] not in known]
        assert not missing, f"options of this torch that hpclaunch lacks: {missing}"

    def test_every_spelling_means_the_same(self, optional):
        for option in optional:
            for name in option["names"]:
                text, value = SAMPLES.get(option["dest"], (None, True))
                words = [name] if option["flag"] else [name, text]
                assert parse(*words, "train.py")[option["dest"]] == value, words

    def test_every_choice_is_one_here(self, optional):
        for option in optional:
            for choice in option["choices"] or ():
                assert parse(option["names"][0], choice, "train.py")[option["dest"]] == choice

    def test_the_table_has_every_option_with_torchs_default(self, optional, table):
        for option in optional:
            for name in option["names"]:
                assert name in table, f"{name} is not in {TABLE.name}"
                names, variable, default, _, status = table[name][:5]
                assert set(option["names"]) <= set(names)
                assert variable == (f"`PET_{option['dest'].upper()}`" if option["variable"] else "")
                expected = TORCH_FILLS_IN.get(option["dest"], option["default"])
                assert default == written(expected), name
                assert status in ("same", "differs", "no effect", "refused"), name

    def test_the_table_has_every_option_of_ours_with_its_default(self, torchs, table):
        defaults = parse("train.py")
        for dest, names in ours().items():
            for name in names:
                assert name in table, f"{name} is not in {TABLE.name}"
                assert set(names) <= set(table[name][0])
                assert (table[name][4] == "ours") == torchs.isdisjoint(names)
                if defaults.get(dest) is not None and dest != "nproc_per_node":
                    assert table[name][3] == written(defaults[dest]), name

    def test_the_table_has_nothing_else(self, torchs, table):
        assert set(table) == torchs | {name for names in ours().values() for name in names}

    def test_what_we_call_ours_is(self, torchs):
        assert {name for names in ours().values() for name in names} - torchs == OURS

    def test_variables(self, optional):
        """Exactly those of torchrun's, each with the meaning of the option."""
        for option in optional:
            dest = option["dest"]
            text, value = SAMPLES.get(dest, ("1", True))
            got = parse("train.py", **{f"PET_{dest.upper()}": text})[dest]
            assert got == (value if option["variable"] else None), dest
        for option in ("BIND", "CHECKPOINT_DIR", "RESUME_WITH", "NPROC", "GRACE"):
            assert parse("train.py", **{f"PET_{option}": "none"}) == parse("train.py") | (
                {"bind": "auto"}
            )

    def test_every_abbreviation_of_torchs_is_one_here(self, ask_torch, optional):
        """Whatever torch's parser understands, ours does, and means the same option."""
        lines = [
            [name[:end], *([] if option["flag"] else [SAMPLES[option["dest"]][0]]), "train.py"]
            for option in optional
            for name in option["names"]
            for end in range(3, len(name) + 1)
        ]
        plain = ask_torch([["train.py"], *lines])["parsed"]
        bare, results = plain[0], plain[1:]
        understood = 0
        for line, result in zip(lines, results, strict=True):
            if result is None:
                continue
            understood += 1
            (dest,) = (d for d in result if result[d] != bare[d])
            value = SAMPLES[dest][1] if dest in SAMPLES else True
            got = parse(*line)
            assert got == parse("train.py") | {dest: value}, line
        assert understood > 200

    def test_lines_of_projects(self, ask_torch):
        lines = [["train.py"], *map(str.split, OF_PROJECTS)]
        bare, *results = ask_torch(lines)["parsed"]
        for line, result in zip(lines[1:], results, strict=True):
            if result is None:
                with pytest.raises(UsageError):
                    parse(*line)
                continue
            got = parse(*line)
            for dest in (d for d in result if result[d] != bare[d]):
                expected = result[dest]
                if dest == "nnodes":
                    expected = values.nodes(expected)
                assert got[dest] == expected or str(got[dest]) == expected, (line, dest)

    def test_whole_command_lines(self, ask_torch):
        """The script and its arguments are cut off at the same place."""
        lines = [
            ["train.py", "--nproc-per-node", "3", "-r", "1"],
            ["-m", "pkg.train", "--standalone"],
            ["-mr", "3", "pkg.train", "-m"],
            ["-mr3", "pkg.train", "a"],
            ["-r3", "-t=1", "train.py"],
            ["--standalone", "--nnodes=1:2", "--role", "-1", "train.py", "--epochs=3"],
            ["--max-restarts=1", "--max_restarts", "2", "train.py"],
            ["--", "train.py", "-x"],
            ["-", "x"],
            ["--rdzv_conf=a=b", "train.py", ""],
            *map(str.split, DOUBLE_DASHES),
        ]
        for line, result in zip(lines, ask_torch(lines)["parsed"], strict=True):
            got = parse(*line)
            for dest in ("training_script", "training_script_args", "module", "redirects", "role"):
                assert got[dest] == result[dest], line


class TestParsing:
    def test_what_was_not_said_is_none(self):
        options = parse("train.py")
        said = {dest for dest, value in options.items() if value is not None}
        assert said == {
            *("module", "no_python", "run_path", "virtual_local_rank", "standalone"),
            *("max_restarts", "shutdown_timeout", "signals_to_handle", "role", "bind"),
            *("cold", "preload", "gpus_per_worker", "mps", "mps_threads", "health"),
            *("progress", "replace_stragglers", "requeue", "max_requeues"),
            *("chain",),
            *("wait_for_nodes", "checkpoint_exclude", "checkpoint_local", "verify"),
            *("redirects", "tee", "local_ranks_filter", "log_line_prefix_template"),
            *("duplicate_stdout_filters", "duplicate_stderr_filters"),
            *("training_script", "training_script_args"),
        }

    @pytest.mark.parametrize(
        ("words", "dest", "value"),
        [
            (["--nproc", "4"], "nproc_per_node", "4"),
            (["--nproc=auto"], "nproc_per_node", "auto"),
            (["--np", "gpu"], "nproc_per_node", "gpu"),
            (["--nproc-per-node", "xpu"], "nproc_per_node", "xpu"),
            (["--nproc", "04"], "nproc_per_node", "4"),
            (["--grace", "0.5"], "shutdown_timeout", 0.5),
            (["--shutdown_timeout", "0"], "shutdown_timeout", 0.0),
            (["--max-r", "0"], "max_restarts", 0),
            (["--nnodes", "3"], "nnodes", (3, 3)),
            (["--nnodes", "1:3"], "nnodes", (1, 3)),
            (["--master-port", "0"], "master_port", 0),
            (["--rdzv-conf", " a = b=c , d=e "], "rdzv_conf", {"a": "b=c", "d": "e"}),
            (["--rdzv-conf", ""], "rdzv_conf", None),
            (["--rdzv-endpoint", ""], "rdzv_endpoint", None),
            (["--log-dir", ""], "log_dir", None),
            (["--duplicate-stdout-filters", ""], "duplicate_stdout_filters", ()),
            (["--duplicate-stdout-filters", "a,,b,c"], "duplicate_stdout_filters", ("a,b", "c")),
            (["--signals-to-handle", " SIGUSR2"], "signals_to_handle", (signal.SIGUSR2,)),
            (["--bind", "none"], "bind", "none"),
            (["--gpus-per-worker", "2"], "gpus_per_worker", 2),
            (["--shared-backend", "gloo"], "shared_backend", "gloo"),
            (["--mps", "on"], "mps", "on"),
            (["--mps-threads", "auto"], "mps_threads", "auto"),
            (["--mps-threads", "12.5%"], "mps_threads", "12.5"),
            (["--mps-memory", "512m"], "mps_memory", "512M"),
            (["--mps-memory", "04GB"], "mps_memory", "4G"),
            (["--mps-memory", ""], "mps_memory", None),
            (["--wait-for-nodes", "5"], "wait_for_nodes", 5.0),
            (["--loss-timeout", "60"], "loss_timeout", 60.0),
            (["--grow", "now"], "grow", "now"),
            (["--health", "off"], "health", "off"),
            (["--cold"], "cold", True),
            (["--preload", "auto, a.b"], "preload", ("auto", "a.b")),
            (["--checkpoint-dir", "c"], "checkpoint_dir", Path("c")),
            (["--resume-with", "--resume {checkpoint}"], "resume_with", "--resume {checkpoint}"),
            (["--resume-with", "--resume={checkpoint}"], "resume_with", "--resume={checkpoint}"),
            (["--resume_with", "-r {checkpoint}"], "resume_with", "-r {checkpoint}"),
            (["--resume-with=--from {checkpoint}"], "resume_with", "--from {checkpoint}"),
            (["--nproc", "1", "--nproc-per-node", "2"], "nproc_per_node", "2"),
            (["--re", "1"], "redirects", "1"),
            (["--v"], "virtual_local_rank", True),
            (["--log-", "logs"], "log_dir", Path("logs")),  # clear before torch 2.14, and still
            (["--log-l", "${rank}"], "log_line_prefix_template", "${rank}"),
        ],
    )
    def test_values(self, words, dest, value):
        assert parse(*words, "train.py") == parse("train.py") | {dest: value}

    def test_defaults_that_are_not_torchruns(self):
        options = parse("train.py")
        assert options["max_restarts"] == 3
        assert options["shutdown_timeout"] == 20.0
        assert options["bind"] == "auto"

    @pytest.mark.parametrize(
        "args",
        [
            ["--log", "x", "--m", "--master=3", "--no-such"],
            ["a", "--", "-h", "--version"],
            ["-r", "--help", ""],
        ],
    )
    @pytest.mark.parametrize("before", [[], ["--nproc", "2"], ["--"], ["-m", "--"]])
    def test_the_scripts_arguments_are_its_own(self, before, args):
        options = parse(*before, "train.py", *args)
        assert options["training_script"] == "train.py"
        assert options["training_script_args"] == args

    def test_words_of_other_launchers_are_no_options(self, torchs):
        for word in other_launchers.OPTIONS:
            assert not any(name.startswith(word) for name in torchs), word
            assert word not in OURS


class TestVariables:
    @pytest.mark.parametrize(
        ("environ", "words", "dest", "value"),
        [
            ({"PET_NPROC_PER_NODE": "2"}, [], "nproc_per_node", "2"),
            ({"PET_NPROC_PER_NODE": "2"}, ["--nproc", "3"], "nproc_per_node", "3"),
            ({"PET_NNODES": "1:2"}, [], "nnodes", (1, 2)),
            ({"PET_MAX_RESTARTS": "x"}, ["--max-restarts", "1"], "max_restarts", 1),
            ({"PET_STANDALONE": "1"}, [], "standalone", True),
            ({"PET_STANDALONE": "0"}, ["--standalone"], "standalone", True),
            ({"PET_STANDALONE": "0"}, [], "standalone", False),
            ({"PET_LOG_DIR": ""}, [], "log_dir", None),
            ({"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "7"}, [], "shutdown_timeout", 7.0),
            ({"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "7"}, ["--grace", "8"], "shutdown_timeout", 8.0),
            (
                {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "7", "PET_SHUTDOWN_TIMEOUT": "9"},
                [],
                "shutdown_timeout",
                9.0,
            ),
        ],
    )
    def test_values(self, environ, words, dest, value):
        assert parse(*words, "train.py", **environ) == parse("train.py") | {dest: value}

    @pytest.mark.parametrize(
        ("variable", "text", "says"),
        [
            ("PET_STANDALONE", "yes", "'yes' is neither 0 (off) nor 1 (on)"),
            ("PET_MODULE", "", "'' is neither 0 (off) nor 1 (on)"),
            ("PET_MAX_RESTARTS", "x", "'x' is not a whole number, 0 or more"),
            ("PET_START_METHOD", "foo", "'foo' is none of spawn, fork, forkserver"),
            ("PET_NPROC_PER_NODE", "two", "'two' is not a number of workers above 0"),
            ("PET_NNODES", "", "'' is not a number of nodes N, nor a range MIN:MAX"),
            ("PET_SIGNALS_TO_HANDLE", "SIGKILL", "no process can handle SIGKILL"),
            ("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "inf", "'inf' is not a number of seconds"),
        ],
    )
    def test_a_mistake_names_the_variable(self, variable, text, says):
        with pytest.raises(UsageError) as e:
            parse("train.py", **{variable: text})
        assert str(e.value).startswith(f"{variable}: {says}")
        assert "--" not in str(e.value).replace("(see hpclaunch --help)", "")


class TestMistakes:
    @pytest.mark.parametrize(
        ("words", "says"),
        [
            ([], "no training script: hpclaunch [options] SCRIPT"),
            (["--nproc", "2"], "no training script"),
            (["--"], "no training script"),
            (["--nproc"], "argument --nproc/--nproc-per-node: expected one argument"),
            (["--nproc", "--standalone", "t.py"], "--nproc-per-node: expected one argument"),
            (["--nproc", "0", "t.py"], "--nproc-per-node: '0' is not a number of workers above 0"),
            (["--nproc", "-1", "t.py"], "'-1' is not a number of workers above 0, nor one of auto"),
            (["--nproc", "²", "t.py"], "'²' is not a number of workers"),
            (["--nproc", "", "t.py"], "'' is not a number of workers"),
            (["--max-restarts", "-1", "t.py"], "argument --max-restarts: '-1' is not a whole"),
            (["--max_restarts", "x", "t.py"], "argument --max-restarts: 'x' is not a whole"),
            (["--node-rank", "-1", "t.py"], "--node-rank: '-1' is not a whole number, 0 or more"),
            (["--master-port", "65536", "t.py"], "is not a whole number, from 0 to 65535"),
            (["--loss-timeout", "1", "t.py"], "must be at least 2 s, not 1"),
            (["--loss-timeout", "inf", "t.py"], "'inf' is not a number of seconds"),
            (["--grace", "nan", "t.py"], "argument --grace/--shutdown-timeout: 'nan' is not"),
            (["--grace", "inf", "t.py"], "'inf' is not a number of seconds, 0 or more"),
            (["--grace", "-0.1", "t.py"], "'-0.1' is not a number of seconds, 0 or more"),
            (["--monitor-interval", "0", "t.py"], "more than 0 seconds"),
            (["--nnodes", "2:1", "t.py"], "--nnodes: '2:1' is not a number of nodes N"),
            (["--nnodes", "0", "t.py"], "'0' is not a number of nodes"),
            (["--nnodes", "1:2:3", "t.py"], "'1:2:3' is not a number of nodes"),
            (["--nnodes", "1:", "t.py"], "'1:' is not a number of nodes"),
            (["--rdzv-conf", "a", "t.py"], "'a' is not of the form KEY=VALUE,KEY=VALUE"),
            (["--rdzv-conf", "a=b,", "t.py"], "is not of the form KEY=VALUE,KEY=VALUE"),
            (["--start-method", "foo", "t.py"], "argument --start-method: invalid choice: 'foo'"),
            (["--numa-binding", "foo", "t.py"], "argument --numa-binding: invalid choice: 'foo'"),
            (["--bind", "foo", "t.py"], "argument --bind: invalid choice: 'foo'"),
            (["--preload", "a-b", "t.py"], "argument --preload: 'a-b' is not a list of modules"),
            (["--preload", ",", "t.py"], "argument --preload: ',' is not a list of modules"),
            (
                ["--signals-to-handle", "TERM", "t.py"],
                "'TERM' is no signal: write names separated by commas, as in",
            ),
            (["--signals-to-handle", "SIGTERM,", "t.py"], "'' is no signal"),
            (["--notice-signal", "FOO", "t.py"], "'FOO' is none of USR1, USR2, TERM"),
            (["--notice-signal", "USR1,USR2", "t.py"], "'USR1,USR2' is none of USR1"),
            (["--checkpoint-dir", "", "t.py"], "--checkpoint-dir: the name of the directory is"),
            (["--stage=", "t.py"], "argument --stage: the name of the directory is empty"),
            (["--signals-to-handle", "SIGSTOP", "t.py"], "no process can handle SIGSTOP"),
            (["--standalone=1", "t.py"], "argument --standalone: ignored explicit argument '1'"),
            (["--no-such-option", "t.py"], "no option --no-such-option"),
            (["--no_such=3", "t.py"], "no option --no_such"),
            (["-x", "t.py"], "no option -x"),
            (["-mx", "t.py"], "no option -mx"),
            (["-1", "t.py"], "no option -1"),
            (["-r"], "argument -r/--redirects: expected one argument"),
            (["--max", "-m", "t.py"], "argument --max-restarts: expected one argument"),
            (["--no", "t.py"], "--no is ambiguous: it could be --no-python, --node-rank"),
        ],
    )
    def test_each_is_one_line(self, words, says):
        with pytest.raises(UsageError) as e:
            parse(*words)
        message = str(e.value)
        assert says in message
        assert message.endswith(" (see hpclaunch --help)")
        assert "\n" not in message
        assert "_" not in message.replace("--no_such", "")

    @pytest.mark.parametrize(
        ("word", "says"),
        [
            ("--nporc", "no option --nporc: did you mean --nproc? (see"),
            ("--nporc=2", "no option --nporc: did you mean --nproc? (see"),
            ("-nproc", "no option -nproc: did you mean --nproc? (see"),
            ("--max_restrats", "no option --max_restrats: did you mean --max_restarts? (see"),
            ("--nproc-per-nod_", "did you mean --nproc_per_node? (see"),
            ("--checkpointdir", "did you mean --checkpoint-dir"),
            ("--nnodse", "did you mean --nnodes? (see"),
            ("--mps-thraeds", "did you mean --mps-threads? (see"),
            ("--duplicate-filters", "--duplicate-stdout-filters or --duplicate-stderr-filters?"),
            ("--no-such-option", "no option --no-such-option (see"),
            ("-z", "no option -z (see"),
        ],
    )
    def test_what_an_option_may_have_been_meant_for(self, word, says):
        with pytest.raises(UsageError) as e:
            parse(word, "t.py")
        assert says in str(e.value)

    @pytest.mark.parametrize(
        ("words", "environ", "says"),
        [
            (["--mps", "atuo", "t.py"], {}, "atuo (choose from auto, on, off)"),
            (["t.py"], {"PET_START_METHOD": "spwan"}, "spwan is none of spawn, fork"),
        ],
    )
    def test_a_value_that_is_none_of_the_choices(self, words, environ, says):
        with pytest.raises(UsageError) as e:
            parse(*words, **environ)
        assert says in str(e.value).replace("'", "")  # not every Python quotes the choices


@pytest.mark.starts
@pytest.mark.parametrize("environ", [{}, {"PET_STANDALONE": "yes"}])
def test_the_command_ends_with_one_line(tmp_path, environ):
    words = ["train.py"] if environ else ["--no-such-option", "train.py"]
    done = hpclaunch(*words, cwd=tmp_path, env=environment(**environ))
    assert done.returncode == 2
    line = only(done.stderr)
    assert line.startswith("hpclaunch: error: ")
    assert (*environ, "--no-such-option")[0] in line


class TestHelp:
    def test_it_has_every_option_once(self, help_text):
        heads = re.findall(r"^  (-.+?)(?:  |$)", help_text, re.MULTILINE)
        named = [name for head in heads for name in re.findall(r"(?<![\w-])--?[a-z-]+", head)]
        assert sorted(named) == sorted(name for names in ours().values() for name in names)
        assert not re.search(r"--\w+_\w", help_text)

    def test_it_fits_a_terminal(self, help_text):
        lines = help_text.splitlines()
        assert max(map(len, lines)) <= 80
        assert not [line for line in lines if line.endswith("-")], "a name was broken in two"

    def test_every_command_is_in_it(self, help_text):
        assert set(COMMANDS) <= set(re.findall(r"[a-z]+", help_page.COMMANDS))
        assert help_page.COMMANDS in help_text

    @pytest.mark.parametrize("words", [["--help"], ["-h"], ["--he"], ["--nproc", "2", "-h", "x"]])
    def test_it_is_shown(self, words, capfd):
        with pytest.raises(SystemExit) as e:
            parse(*words)
        assert e.value.code == 0
        shown = capfd.readouterr().out
        assert help_page.COMMANDS in shown
        lines = shown.splitlines()
        assert len(lines) <= 60
        assert max(map(len, lines)) <= 80

    def test_all_of_it_is_shown(self, capfd):
        with pytest.raises(SystemExit) as e:
            parse("--help-all")
        assert e.value.code == 0
        assert "accepted for compatibility with torchrun:" in capfd.readouterr().out

    def test_the_options_that_most_people_need_are_options_with_these_defaults(self):
        options = build_parser({}).options
        for entry in re.split(r"\n(?=  -)", help_page.OPTIONS)[1:]:
            first, *more = re.findall(r"(?<![\w'])--[a-z-]+", entry)
            assert {first, *more} <= options.keys()
            for default in re.findall(r"\(default: (\w+)[),]", entry):
                text = options[first].help % vars(options[first])
                assert default == "all" or default in re.findall(r"\w+", text)

    def test_version(self, capfd):
        with pytest.raises(SystemExit):
            parse("--version")
        assert re.fullmatch(r"hpclaunch \S+\n", capfd.readouterr().out)


def test_the_parser_is_light():
    """The parser answers --help, and runs on every node before anything else.

    Imports inside functions do not count: they are made for a mistake only.
    """
    folder = Path(__file__).parents[2] / "launcher" / "hpclaunch" / "cli"
    found = set()
    for name in ("options", "parser", "values"):
        for node in ast.parse((folder / f"{name}.py").read_text()).body:
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                found.add(node.module)
    assert {name for name in found if not name.startswith("hpclaunch")} <= {
        "__future__",
        "argparse",
        "collections.abc",
        "math",
        "os",  # which Python imports at its start
        "pathlib",
        "re",  # which argparse imports, too
        "signal",
        "sys",
        "typing",
    }
