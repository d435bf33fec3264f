"""Whatever is typed, exported or sent: a result or one clear error, never a traceback or a hang."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import string
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from launching import hpclaunch, script

from damaged_data import damaged
from hpclaunch.cli import agent_config, main, run
from hpclaunch.cli.options import build_parser
from hpclaunch.core.protocol.errors import UsageError
from hpclaunch.core.protocol.messages import Order, Report
from hpclaunch.core.protocol.model import Goal, Phase
from hpclaunch.system.hosts import slurm
from hpclaunch.system.network import view_client, wire
from surroundings import environment

pytestmark = [pytest.mark.starts, pytest.mark.fuzz]
many = settings(max_examples=400)
OPTIONS = sorted(name for a in build_parser({})._actions for name in a.option_strings)
NUMBERS = st.sampled_from(
    [
        "",
        "0",
        "1",
        "-1",
        "007",
        "1e3",
        "٣",
        "½",
        "²",
        "9" * 30,
        "9" * 400,
        "0x10",
        "1_0",
        " 1",
        "nan",
    ]
)
TEXT = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), max_size=12)
HOSTLIST = st.text(string.ascii_letters + "019[]-,@!&^{}%*/. \n$(", max_size=24) | st.sampled_from(
    [
        "n[1-3]",
        "n[3-1]",
        "n[1-99999999999]",
        "n[",
        "n]",
        "[[",
        "@all",
        "n[1-2]!n1",
        "a b",
        "n[1-2",
        ",",
    ]
)
COUNTS = NUMBERS | st.sampled_from(
    ["1(x2)", "2(x3),1", "1(x-1)", "(x2)", "1(x99999999999)", "1,,1"]
)
WORDS = st.one_of(
    st.sampled_from(OPTIONS),
    st.builds("{}={}".format, st.sampled_from(OPTIONS), TEXT | NUMBERS),
    st.sampled_from(OPTIONS).map(lambda name: name.replace("-", "_")[:9]),
    st.sampled_from(
        ["-", "--", "---", "-rt", "-m", "train.py", "0:1,1:3", "1:2", "a=b", "SIGTERM"]
    ),
    NUMBERS,
    TEXT,
)
STEP = {
    "SLURM_JOB_ID": NUMBERS | st.just("7"),
    "SLURM_STEP_ID": NUMBERS | st.sampled_from(["4294967290", "-6", "0"]),
    "SLURM_STEP_NODELIST": HOSTLIST,
    "SLURM_STEP_TASKS_PER_NODE": COUNTS,
    "SLURM_STEP_NUM_TASKS": NUMBERS,
    "SLURM_JOB_NODELIST": HOSTLIST,
    "SLURM_JOB_NUM_NODES": NUMBERS,
    "SLURM_LOCALID": NUMBERS,
    "SLURM_NODEID": NUMBERS,
    "SLURM_PROCID": NUMBERS,
    "SLURMD_NODENAME": HOSTLIST,
    "SLURM_RESTART_COUNT": NUMBERS,
    "SLURM_HET_SIZE": NUMBERS,
    "SLURM_JOB_ID_HET_GROUP_0": TEXT,
    "SLURM_CPUS_ON_NODE": COUNTS,
    "CUDA_VISIBLE_DEVICES": st.sampled_from(["", "-1", "0,0", "MIG-", "GPU-x", "NoDevFiles"])
    | TEXT,
    "PYTHON_EXEC": TEXT,
    "PET_NNODES": COUNTS,
    "PET_STANDALONE": NUMBERS,
}


@st.composite
def environments(draw):
    names = draw(st.sets(st.sampled_from(sorted(STEP))))
    return {name: draw(STEP[name]) for name in sorted(names)}


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", os.devnull)  # no scontrol: it would be asked a thousand times
    script(tmp_path, "")


@many
@given(st.lists(WORDS, max_size=6))
def test_a_command_line(here, words):
    with contextlib.suppress(UsageError, SystemExit), contextlib.redirect_stdout(None):
        run.check(build_parser({}).parse_args(words))


@many
@given(environments(), st.lists(WORDS, max_size=3))
def test_an_environment(here, environ, words):
    with contextlib.suppress(UsageError, SystemExit), contextlib.redirect_stdout(None):
        options = build_parser(environ).parse_args([*words, "train.py"])
        if options.nnodes is None and not options.rdzv_endpoint and not options.master_addr:
            run.check(options)
            config = agent_config.configure(options, environ)
            assert config.nproc >= 1 or config.trouble


@many
@given(HOSTLIST)
def test_a_host_list(here, nodelist):
    with contextlib.suppress(ValueError):
        hosts = slurm.expand(nodelist)
        assert hosts
        assert len(hosts) <= slurm.MOST
        assert all(host.strip() for host in hosts)


@many
@given(COUNTS | st.text("0123456789(x),-", max_size=20))
def test_tasks_per_node(text):
    with contextlib.suppress(ValueError):
        assert len(slurm.tasks_per_node(text)) <= slurm.MOST


MESSAGES = [
    wire.encode(Order(1, 2, "f00d", Goal.STOP, 1)),
    wire.encode(
        Report("n1", "f00d", 9, 2, "10.0.0.3", "", 4243, 1, Phase.IDLE, (), 0, trouble=None)
    ),
]


@many
@given(
    st.binary(max_size=200)
    | st.builds(
        lambda m, at, junk, cut: m[: at % len(m)] + junk + m[at % len(m) + cut :],
        st.sampled_from(MESSAGES),
        st.integers(0, 1000),
        st.binary(max_size=8),
        st.integers(0, 8),
    )
)
def test_a_message(data):
    with contextlib.suppress(wire.WireError):
        assert isinstance(wire.decode(data), Order | Report)


@settings(max_examples=12, suppress_health_check=list(HealthCheck))
@given(environments().filter(lambda e: "SLURM_STEP_NODELIST" in e and "SLURM_STEP_ID" in e))
def test_the_whole_command(tmp_path, environ):
    """One of several agents may wait for the others: here it is enough that it says so."""
    script(tmp_path, "print('ran')")
    encodable = {k: v for k, v in environ.items() if v.isprintable()}
    args = ["--rdzv-conf=join_timeout=1", "--nproc=1", "train.py"]
    done = hpclaunch(*args, cwd=tmp_path, env=environment(**encodable))
    assert done.returncode in (0, 1, 2)
    assert "Traceback" not in done.stderr + done.stdout


@functools.cache
def log_directory():
    """Return the files of a job's log directory, by name."""
    with tempfile.TemporaryDirectory() as directory:
        script(Path(directory), "import time; print('ran'); time.sleep(0.1); assert 0, 'no'")
        hpclaunch("--nproc=2", "--max-restarts=1", "--log-dir=logs", "train.py", cwd=directory)
        logs = Path(directory, "logs")
        files = {p.relative_to(logs): p.read_bytes() for p in logs.rglob("*") if p.is_file()}
    kinds = {path.name.partition("-")[0] for path in files}
    assert {"status.json", "facts.jsonl", "history", "journal.jsonl", "index"} <= kinds
    return files


@settings(max_examples=50)
@given(st.data())
def test_a_log_directory(tmp_path_factory, data):
    """Whatever is in its files, the commands that read them have a result or one clear error."""
    here = tmp_path_factory.mktemp("logs")
    files = log_directory()
    changed = data.draw(st.sets(st.sampled_from(sorted(files)), min_size=1, max_size=3))
    for name, content in files.items():
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_bytes(data.draw(damaged([content])) if name in changed else content)
    journal = here / "journal.jsonl"
    page = here / "page.html"
    for words in (
        ("report", here), ("report", "--json", here), ("report", "--html", page, here),
        ("logs", here), ("status", here), ("replay", journal),
    ):  # fmt: skip
        with (
            open(os.devnull, "w") as nowhere,
            contextlib.redirect_stdout(nowhere),
            contextlib.redirect_stderr(nowhere),
            pytest.MonkeyPatch.context() as patch,
        ):
            patch.setattr(view_client, "sockets", list)  # no agent on this machine is asked
            assert main([*map(str, words)]) in (0, 1, 2)
    shutil.rmtree(here)
