"""The same program on one machine: real workers, really killed."""

import json
import os
import resource
import socket
import subprocess
import sys
from typing import get_args

import psutil
import pytest
import saving
from launching import (
    LIMIT,
    command_of,
    hpclaunch,
    only_logs,
    outputs,
    said,
    script,
    start,
    until,
    without_load,
)

from hpclaunch.core.protocol.facts import EndReason, SeatUse
from hpclaunch.core.protocol.model import EXIT_LOST, Origin
from hpclaunch.core.protocol.node_facts import NodeFact
from hpclaunch.system.logs import fact_files
from lines import only
from surroundings import LIGHT_TORCH, SHORT, STAND_INS, environment

pytestmark = [pytest.mark.starts, pytest.mark.torch]

TRAIN = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
ones = torch.tensor([1.0])
dist.all_reduce(ones)
rank, restarts = dist.get_rank(), os.environ["TORCHELASTIC_RESTART_COUNT"]
print(f"rank {rank} of {int(ones[0])} restarts {restarts}")
if restarts in sys.argv[1:] and rank == 1:
    os.kill(os.getpid(), 9)
dist.barrier()
dist.destroy_process_group()
"""


def journal(cwd):
    lines = (only_logs(cwd) / "journal.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_a_training(tmp_path):
    done = hpclaunch("--nproc", 2, script(tmp_path, TRAIN), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = sorted(done.stdout.splitlines())
    assert lines == ["rank 0 of 2 restarts 0", "rank 1 of 2 restarts 0"]
    assert outputs(tmp_path) == {
        "rank-0.out": "rank 0 of 2 restarts 0\n",
        "rank-1.out": "rank 1 of 2 restarts 0\n",
    }


@pytest.mark.usefixtures("light_torch")
def test_a_killed_worker_costs_one_restart(tmp_path):
    done = hpclaunch("--nproc", 2, script(tmp_path, TRAIN), "0", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "rank 1 of 2 restarts 1" in done.stdout
    assert "was killed by SIGKILL; restart 1 of 3" in done.stderr
    assert outputs(tmp_path, 1)["rank-1.out"] == "rank 1 of 2 restarts 1\n"


def test_restarts_exhausted(tmp_path):
    args = ["--nproc", 2, "--max-restarts", 1, script(tmp_path, TRAIN), "0", "1"]
    done = hpclaunch(*args, cwd=tmp_path, env=environment(PYTHONPATH=LIGHT_TORCH))
    assert done.returncode == 137
    text = done.stderr
    assert "rank 1 on " in text
    assert "was killed by SIGKILL in round 1, and the only restart is used up" in text
    assert "    | rank 1 of 2 restarts 1" in text


@pytest.mark.parametrize(("code", "status"), [("sys.exit(7)", 7), ("1/0", 1), ("os.abort()", 134)])
def test_the_exit_code_is_the_causes_own(tmp_path, code, status):
    body = (
        f"import os, sys\nif os.environ['RANK'] == '1':\n    {code}\nimport time; time.sleep(600)"
    )
    args = ["--nproc", 2, "--max-restarts", 0, "--grace", 1, script(tmp_path, body)]
    done = hpclaunch(*args, cwd=tmp_path)
    assert done.returncode == status
    assert "no restarts were allowed (--max-restarts 0)" in done.stderr
    if code == "1/0":
        assert "    | ZeroDivisionError: division by zero" in done.stderr


def test_a_home_that_cannot_be_written_is_not_needed(tmp_path):
    path = script(tmp_path, "print('hello')")
    done = hpclaunch("--nproc", 2, path, cwd=tmp_path, env=environment(HOME="/sys/kernel"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "hello\n" * 2, "")


def test_workers_do_not_need_torch(tmp_path):
    done = hpclaunch("--nproc", 3, script(tmp_path, "print('hello')"), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "hello\n" * 3)


def test_auto_without_a_gpu_says_what_it_counts(tmp_path):
    if os.path.exists("/proc/driver/nvidia"):
        pytest.skip("there is a GPU here")
    cpus = len(os.sched_getaffinity(0))
    done = hpclaunch("--nproc", "auto", script(tmp_path, "print('hello')"), cwd=tmp_path)
    assert done.stdout == "hello\n" * cpus
    assert f"no GPU here: one worker for each of the {cpus} CPUs" in done.stderr


def test_arguments_reach_the_script_verbatim(tmp_path):
    args = ["--nproc=5", "-m", "two words", "", "--", "*", "--max-restarts", "$HOME"]
    body = "import json, sys; print(json.dumps(sys.argv[1:]))"
    done = hpclaunch("--nproc", 1, script(tmp_path, body), *args, cwd=tmp_path)
    assert json.loads(done.stdout) == args


def test_resuming(tmp_path):
    """A script that does not know hpclaunch gets arguments, from the second start."""
    body = (
        "import os, saving, sys\n"
        "print(sys.argv[1:], os.environ['HPCLAUNCH_CHECKPOINT'])\n"
        "saving.save({}, 'points/a b.pt')\n"
        "sys.exit(int(os.environ['TORCHELASTIC_RESTART_COUNT'] == '0'))\n"
    )
    (tmp_path / "points").mkdir()
    args = ["--checkpoint-dir", "points", "--resume-with", "--resume {checkpoint}"]
    env = environment(PYTHONPATH=f"{STAND_INS}:{LIGHT_TORCH}")
    done = hpclaunch("--nproc", 1, *args, script(tmp_path, body), "x", cwd=tmp_path, env=env)
    point = str(tmp_path / "points" / "a b.pt")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"['x'] {''}", f"['x', '--resume', '{point}'] {point}"]
    assert f"resuming from {point}" in done.stderr


SHARES = """
import os, signal, sys
import torch
torch.multiprocessing.set_sharing_strategy("file_system")
_, name, _ = torch.ones(1000).untyped_storage()._share_filename_cpu_()
print(name.decode())
sys.stdout.flush()
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_nothing_of_a_failed_round_is_left_in_shared_memory(tmp_path):
    """torch_shm_manager, which outlives its workers for that, takes its time."""
    timing = {"leftovers": 60.0}
    env = environment(TMPDIR=SHORT)  # torch_shm_manager has a socket there
    done = hpclaunch("--nproc", 1, script(tmp_path, SHARES), cwd=tmp_path, timing=timing, env=env)
    assert done.returncode == 0, done.stderr
    names = done.stdout.split()
    assert len(names) == 2
    assert not any(os.path.exists(f"/dev/shm{name}") for name in names)


def test_a_stalled_console_stops_nobody(tmp_path):
    """1 MB a worker into a pipe that nobody reads until the workers are done."""
    body = "for n in range(10_000): print(f'{n:06d} ' + 92 * 'x')\nopen('done','w').close()"
    job = start("--nproc", 1, script(tmp_path, body), cwd=tmp_path)
    until((tmp_path / "done").exists)
    out, _ = job.communicate(timeout=LIMIT)
    assert job.returncode == 0
    assert [line[:6] for line in out.splitlines()] == [f"{n:06d}" for n in range(10_000)]


def test_a_console_that_has_gone_ends_nothing(tmp_path):
    body = "import time\nfor n in range(30): print(n); time.sleep(0.02)"
    job = start("--nproc", 1, script(tmp_path, body), cwd=tmp_path, stderr=subprocess.DEVNULL)
    job.stdout.close()
    assert job.wait(LIMIT) == 0
    assert outputs(tmp_path)["rank-0.out"].splitlines()[-1] == "29"


def test_the_journal_records_what_happened(tmp_path):
    hpclaunch("--nproc", 1, "--max-restarts", 1, script(tmp_path, "1/0"), cwd=tmp_path)
    entries = journal(tmp_path)
    names = [e.get("event") or e.get("effect") or e.get("note") for e in entries]
    assert names[:2] == ["core", "Started"]
    assert names.count("StartWorkers") == 2
    assert names.count("started") == 2
    assert names.count("WorkerExited") == 2
    assert names[-2:] == ["Exit", "position"]
    assert [e["now"] for e in entries] == sorted(e["now"] for e in entries)
    assert only_logs(tmp_path).stat().st_mode & 0o777 == 0o700
    assert (only_logs(tmp_path) / "journal.jsonl").stat().st_mode & 0o777 == 0o600


def test_the_facts_of_a_job(tmp_path):
    hpclaunch("--nproc", 1, "--max-restarts", 1, script(tmp_path, "1/0"), cwd=tmp_path)
    ((run,), _) = fact_files.read(only_logs(tmp_path))
    others = (SeatUse, *get_args(NodeFact))  # of this machine, say
    found = [fact for _, fact in run.facts if not isinstance(fact, others)]
    first, failed, restart, second, *_, over = found
    assert (first.round, second.round, second.begins) == (0, 1, 2)
    assert (failed.round, failed.reasons) == (0, (EndReason.FAILURE,))
    assert failed.failures[0].tail.endswith("ZeroDivisionError: division by zero")
    assert -60 < failed.failures[0].at <= failed.seen <= 0
    assert (restart.used, restart.most) == (1, 1)
    assert over.verdict.origin is Origin.FAILURE


def test_a_log_directory_of_the_users_choice(tmp_path):
    args = ["--nproc", 1, "--log-dir", "mine", script(tmp_path, "print('hello')")]
    for runs in (1, 2):
        assert hpclaunch(*args, cwd=tmp_path).returncode == 0
        assert (tmp_path / "mine/round-0/rank-0.out").read_text() == "hello\n" * runs


@pytest.mark.usefixtures("light_torch")
def test_the_words_of_an_earlier_launch_explain_nothing(tmp_path):
    """Both launches write to the same file, but their failures are not the same."""
    options = ["--nproc", 1, "--log-dir", "mine", "--max-restarts", 1]
    done = hpclaunch(*options, script(tmp_path, "import nowhere"), cwd=tmp_path)
    assert "restart" not in done.stderr  # which would not help
    body = "import os; print('real work', flush=True); os._exit(7)"
    done = hpclaunch(*options, script(tmp_path, body), cwd=tmp_path)
    assert done.returncode == 7
    assert done.stderr.count("; restart 1 of 1\n") == 1
    assert only(done.stderr, "docs/messages.md#") == "  see docs/messages.md#failure"
    assert "nowhere" not in done.stderr


def test_the_environment_is_torchruns(tmp_path):
    """Every variable that torchrun sets, and with the same value where it can be the same."""
    body = "import json, os; json.dump(dict(os.environ), open(os.environ['RANK'] + '.json', 'w'))"
    path = script(tmp_path, body)

    def seen(rank):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        return {k: v for k, v in found.items() if k not in before}

    before = environment()
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    torchrun += ["--max-restarts=3", str(path)]
    subprocess.run([sys.executable, *torchrun], cwd=tmp_path, env=before, check=True)
    theirs = [seen(rank) for rank in (0, 1)]
    assert hpclaunch("--nproc", 2, path, cwd=tmp_path).returncode == 0
    ours = [seen(rank) for rank in (0, 1)]
    own = {"TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT"}
    newer = {"TORCHELASTIC_SIGNALS_TO_HANDLE"}  # which not every torchrun sets
    if theirs[0]["TORCHELASTIC_USE_AGENT_STORE"] == "False":  # torch 2.4: rank 0 holds the store
        own |= {"TORCHELASTIC_USE_AGENT_STORE"}
    for mine, its in zip(ours, theirs, strict=True):
        assert set(its) <= set(mine)
        assert {k: mine[k] for k in set(its) - own} == {k: its[k] for k in set(its) - own}
        assert {k for k in set(mine) - set(its) - newer if not k.startswith("HPCLAUNCH_")} == {
            "GLOO_SOCKET_IFNAME",
            "TP_SOCKET_IFNAME",
            "PYTHONPATH",
        }
        assert mine["MASTER_ADDR"] == "127.0.0.1"
        assert mine["GLOO_SOCKET_IFNAME"] == "lo"


def test_what_the_user_has_set_stays(tmp_path):
    chosen = {"OMP_NUM_THREADS": "3", "GLOO_SOCKET_IFNAME": "lo"}
    chosen["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"
    body = f"import os; print([os.environ[n] for n in {list(chosen)}])"
    args = ["--nproc", 2, script(tmp_path, body)]
    done = hpclaunch(*args, cwd=tmp_path, env=environment(**chosen))
    assert done.stdout == f"{list(chosen.values())}\n" * 2


def test_logs_that_cannot_be_written_any_more_end_the_job_with_a_word(tmp_path):
    body = "import sys; open('mine/round-1', 'w').close(); sys.exit(3)"
    done = hpclaunch("--nproc", 1, "--log-dir", "mine", script(tmp_path, body), cwd=tmp_path)
    assert done.returncode == 1
    assert "cannot write logs: " in done.stderr
    assert "Traceback" not in done.stderr


def test_a_checkpoint_of_a_name_that_is_no_text_ends_nothing(tmp_path):
    (tmp_path / "saved").mkdir()
    path = script(tmp_path, "import os; print(repr(os.environ['HPCLAUNCH_CHECKPOINT']))")
    saving.save(1, tmp_path / "saved" / "ep\udcff.pt")
    done = hpclaunch("--nproc=1", "--checkpoint-dir=saved", path, cwd=tmp_path)
    saved = repr(str(tmp_path / "saved" / "ep\udcff.pt"))
    assert (done.returncode, done.stdout) == (0, f"{saved}\n"), done.stderr
    assert "saved/ep?.pt (torch.save, by time)" in done.stderr


def test_the_console_shows_what_was_chosen(tmp_path):
    """-r hides, -t prefixes, words are duplicated; the files have everything."""
    body = (
        "import os, sys\n"
        "rank = os.environ['RANK']\n"
        "print('loss', rank); print('else', rank); print('err', rank, file=sys.stderr)\n"
    )
    options = ["-r=3", "-t=0:3,1:1", "--duplicate_stdout_filters=loss", "--log-dir=mine"]
    options += ["--logs-specs=default"]
    done = hpclaunch("--nproc=3", *options, script(tmp_path, body), cwd=tmp_path)
    lines = ["[default0]:else 0", "[default0]:loss 0", "[default1]:else 1", "[default1]:loss 1"]
    assert sorted(done.stdout.splitlines()) == lines
    assert done.stderr == "[default0]:err 0\n"
    logs = tmp_path / "mine/round-0"
    assert (logs / "rank-2.out").read_text() == "loss 2\nelse 2\n"
    found = sorted((logs / "filtered-agent-0.out").read_text().splitlines())
    assert found == [f"[default{rank}]:loss {rank}" for rank in range(3)]


@pytest.mark.parametrize("by", ["option", "variable"])
def test_what_tee_begins_its_lines_with(tmp_path, by):
    template = "${hostname}:${rank}: "
    option = [f"--log-line-prefix-template={template}"] if by == "option" else []
    env = environment(TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE="not this: " if option else template)
    done = hpclaunch("-t=3", *option, script(tmp_path, "print(1)"), cwd=tmp_path, env=env)
    assert done.stdout == f"{socket.gethostname()}:0: 1\n"


COUNTS = """
import itertools, os, time
for i in itertools.count():
    print("line", i)
    if os.path.exists("over"):
        break
    time.sleep(0.02)
"""


def test_the_process_that_shows_the_output_is_killed(tmp_path):
    """Another process takes over, and the workers notice nothing."""
    agent = start("--nproc=1", script(tmp_path, COUNTS), cwd=tmp_path)
    assert agent.stdout.readline() == "line 0\n"
    children = psutil.Process(agent.pid).children()
    (shows,) = [p for p in children if "log_service" in " ".join(command_of(p.pid))]
    shows.kill()
    assert said(agent, "was killed and replaced: lines may be missing")
    (log,) = tmp_path.glob("hpclaunch-logs/*/round-0/rank-0.out")
    written = log.read_text().count("\n")
    shown = [agent.stdout.readline()]
    while int(shown[-1].split()[1]) <= written:
        shown.append(agent.stdout.readline())
    (tmp_path / "over").touch()
    shown += agent.stdout
    _, err = agent.communicate(timeout=LIMIT)
    assert agent.returncode == 0, err
    lines = log.read_text().splitlines(keepends=True)
    assert lines == [f"line {i}\n" for i in range(len(lines))]
    assert shown[-1] == lines[-1]


def test_the_process_that_shows_the_output_is_killed_and_no_other_can_be_started(tmp_path):
    agent = start("--nproc=1", script(tmp_path, COUNTS), cwd=tmp_path)
    assert agent.stdout.readline() == "line 0\n"
    every = psutil.Process(agent.pid).children(recursive=True)
    (shows,) = [p for p in every if "log_service" in " ".join(command_of(p.pid))]
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.prlimit(agent.pid, resource.RLIMIT_NOFILE, (3, hard))  # without a further file
    shows.kill()
    _, err = agent.communicate(timeout=LIMIT)
    (line,) = without_load(err).splitlines()
    assert line.startswith("hpclaunch: error: on ")
    assert line.endswith("can be started: Too many open files: see ulimit -u and ulimit -n")
    assert agent.returncode == EXIT_LOST
    until(lambda: not any(p.is_running() for p in every))


def test_more_workers_than_the_user_may_have_open_files(tmp_path):
    """Two files of each are followed, by a process that raises its limit for them."""
    path = script(tmp_path, "print('hi')\n")
    limited = ("sh", "-c", 'ulimit -Sn 40; exec "$@"', "sh")
    done = hpclaunch("--nproc=30", "--cold", path, cwd=tmp_path, before=limited)
    assert (done.returncode, done.stdout) == (0, "hi\n" * 30), done.stderr
