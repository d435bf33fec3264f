"""Launches with --stage: the script saves in memory, and the launcher copies that to storage."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from launching import LIMIT, hpclaunch, script, start, until
from machines import start as start_machine

from hpclaunch.system.staging.room import is_in_memory
from hpclaunch.worker.memory_kills import count_in
from lines import only
from surroundings import LIGHT_TORCH, STAND_INS, environment, free_port

pytestmark = pytest.mark.starts

MIB = 1 << 20
GROUPS = Path("/sys/fs/cgroup")
BASE = Path(f"/dev/shm/hpclaunch-stage-{os.geteuid()}")
ENVIRON = {"PYTHONPATH": f"{LIGHT_TORCH}:{STAND_INS}"}  # where the module `saving` is
# It saves in the directory of its first argument; AFTER is what it does after each save.
TRAIN = """
import filecmp, glob, os, saving, signal, sys, time
directory, last = sys.argv[1], 6
done = 0
if checkpoint := os.environ["HPCLAUNCH_CHECKPOINT"]:
    done = saving.load(checkpoint)["step"]
print("begins at", done, *sys.argv[2:], flush=True)

def await_fact(name):
    while not any(name in open(path).read() for path in glob.glob("hpclaunch-logs/*/facts.jsonl")):
        time.sleep(0.02)

os.makedirs(directory, exist_ok=True)
for step in range(done + 1, last + 1):
    saving.save({"step": step, "optimizer": {}}, f"{directory}/new.tmp")
    os.replace(f"{directory}/new.tmp", f"{directory}/step-{step}.pt")
    print("saved", step, flush=True)
    time.sleep(0.02)
    AFTER
with open(f"{directory}/result.txt", "w") as f:
    f.write("done")
"""
DIES = "if step == 3 and not done: os.kill(os.getpid(), signal.SIGKILL)"
STAYS = "if step == done + 1: time.sleep(600)"
SLOWLY = 0.025  # seconds for each MiB, so that the guard of memory acts in time on a busy machine
# The stager is a child of the agent, as is the fork server, of which the worker is a grandchild.
SAVES_DIRECTORY = """
import os, saving, sys
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    os.makedirs(f"{sys.argv[1]}/step-1")
    saving.save({"step": 1}, f"{sys.argv[1]}/step-1/model.pt")
    os._exit(9)
"""
KILLS_STAGER = """
    if step == 3:
        import subprocess
        found = subprocess.check_output(["pgrep", "-f", "staging.service"], text=True)
        for pid in found.split():
            try:
                if os.environ["HPCLAUNCH_STAGE"] in open(f"/proc/{pid}/cmdline").read():
                    os.kill(int(pid), signal.SIGKILL)
            except OSError:  # a stager of another test has just ended
                pass
"""
BREAKS_STORAGE = """
    if step == 3:
        import shutil
        while not os.path.isfile("ckpt"):  # it may be written at the moment
            shutil.rmtree("ckpt", ignore_errors=True)
            try:
                open("ckpt", "w").close()
            except OSError:
                pass
    if step == last:
        await_fact("StoringFailed")
"""
PATH_IN_FILE = """
import os, saving, sys
last = os.path.join(sys.argv[1], "last_checkpoint")
if os.path.exists(last):
    print("found", saving.load(open(last).read())["step"])
else:
    path = os.path.join(sys.argv[1], "step-1.pt")
    saving.save({"step": 1, "optimizer": {}}, path)
    with open(last, "w") as file:
        file.write(path)
"""
# It cannot begin with step 2.
FAILS_TO_LOAD = TRAIN.replace("begins at", "tries").replace(
    "os.makedirs", "if done == 2: raise ValueError(f'does not fit: {checkpoint}')\nos.makedirs", 1
)


@pytest.fixture(autouse=True)
def _nothing_stays_in_memory(tmp_path):
    yield
    assert not [path for path in stages(tmp_path) if path.exists()]


def stages(tmp_path):
    """Return the directories in memory of all launches of this test."""
    found = [p.read_text() for p in tmp_path.glob("hpclaunch-logs/*/facts.jsonl")]
    began = [json.loads(line) for line in "".join(found).splitlines() if "StageBegan" in line]
    return [Path(fact["directory"]).parent for fact in began]


def launch(tmp_path, after="", *options, **more):
    path = script(tmp_path, TRAIN.replace("AFTER", after))
    words = ("--nproc", 1, *options, "--stage", "--checkpoint-dir", "ckpt", path, "ckpt")
    return hpclaunch(*words, cwd=tmp_path, env=environment(**ENVIRON), **more)


def begin(tmp_path, after):
    path = script(tmp_path, TRAIN.replace("AFTER", after))
    words = ("--nproc", 1, "--stage", "--checkpoint-dir", "ckpt", path, "ckpt")
    return start(*words, cwd=tmp_path, environ=environment(**ENVIRON))


def with_small(directory, size):
    """Return words before a command, which then has a small file system in this directory."""
    directory.mkdir()
    words = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    words += [f'mount -t tmpfs -o size={size} none {directory} && exec "$@"', "sh"]
    if subprocess.run([*words, "true"], capture_output=True).returncode:
        pytest.skip("this user cannot mount a file system")
    return words


def group_of_memory():
    """Return the directory of this process's tests among the control groups that limit memory."""
    older = GROUPS / "memory"
    return (older if older.exists() else GROUPS) / f"hpclaunch-test-{os.getpid()}"


def kernel_kills():
    """Return how many processes of `limited` the kernel has killed to free memory."""
    files = (group_of_memory() / name for name in ("memory.events", "memory.oom_control"))
    (count,) = {count_in(os.fsencode(file)) for file in files} - {None}
    return count


@pytest.fixture
def limited(tmp_path):
    """Yield words before a command, which then runs in a control group with 400 MiB of memory."""
    if is_in_memory(str(tmp_path)):
        pytest.skip("what tests write to storage would count as memory")
    group, files = group_of_memory(), ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
    if group.parent == GROUPS:  # cgroup v2
        files = ("memory.max", "memory.swap.max")
    try:
        group.mkdir()
        (group / files[0]).write_text(str(400 * MIB))
    except OSError as e:
        pytest.skip(f"this user cannot limit memory by a control group: {e}")
    with contextlib.suppress(OSError):  # a kernel that does not count swap
        (group / files[1]).write_text(str(400 * MIB))
    yield ["sh", "-c", f'echo $$ >{group}/cgroup.procs && exec "$@"', "sh"]
    until(lambda: not (group / "cgroup.procs").read_text())
    group.rmdir()


def until_line(agent, text):
    """Yield the lines of the script until one has this text."""
    for line in agent.stdout:
        yield line
        if text in line:
            return
    raise AssertionError(f"the script has not printed {text!r}: {agent.stderr.read()}")


def begins(text):
    return [int(step) for step in re.findall(r"begins at (\d+)", text)]


def stored(tmp_path):
    return sorted(p.name for p in (tmp_path / "ckpt").iterdir())


ALL = [*(f"step-{n}.pt" for n in range(1, 7)), "result.txt"]


def test_a_killed_worker_resumes_from_memory_and_all_reaches_storage(tmp_path):
    done = launch(tmp_path, DIES)
    assert done.returncode == 0, done.stderr
    assert begins(done.stdout) == [0, 3]
    path = tmp_path / "ckpt" / "step-3.pt"
    line = only(done.stderr, "resuming from")
    assert line.endswith(f"resuming from {path} (torch.save, step 3, by its name, in memory)")
    line = only(done.stderr, "the script saves in")
    assert re.search(rf"saves in {BASE}/\w+/ckpt; each checkpoint is copied to ckpt; ", line)
    assert {"step-3.pt", "step-6.pt", "result.txt"} <= set(stored(tmp_path)) <= set(ALL)


def test_a_pattern_of_directories(tmp_path):
    path = script(tmp_path, TRAIN.replace("AFTER", DIES))
    words = ("--nproc", 1, "--stage", "--checkpoint-dir", "runs/*/ckpt", path, "runs/a/ckpt")
    done = hpclaunch(*words, cwd=tmp_path, env=environment(**ENVIRON))
    assert done.returncode == 0, done.stderr
    assert begins(done.stdout) == [0, 3]
    assert f"resuming from {tmp_path}/runs/a/ckpt/step-3.pt" in done.stderr
    found = {p.name for p in (tmp_path / "runs" / "a" / "ckpt").iterdir()}
    assert {"step-6.pt", "result.txt"} <= found


def test_another_launch_continues_from_storage(tmp_path):
    """Arguments that are added to resume name the directory in memory, too."""
    assert launch(tmp_path, "if step == 3: sys.exit(7)", "--max-restarts=0").returncode == 7
    assert "step-3.pt" in stored(tmp_path)
    done = launch(tmp_path, "", "--resume-with=--load=ckpt")
    assert done.returncode == 0, done.stderr
    assert re.search(rf"begins at 3 --load={BASE}/\w+/ckpt\n", done.stdout)
    assert f"resuming from {tmp_path}/ckpt/step-3.pt" in done.stderr


def test_the_next_launch_finds_a_path_that_the_script_has_saved(tmp_path):
    path = script(tmp_path, PATH_IN_FILE)
    words = ("--nproc", 1, "--stage", "--checkpoint-dir", "ckpt", path, "ckpt")
    for expected in ("", "found 1\n"):
        done = hpclaunch(*words, cwd=tmp_path, env=environment(**ENVIRON))
        assert (done.returncode, done.stdout) == (0, expected), done.stderr


def test_nothing_is_lost_if_the_launcher_is_ended(tmp_path):
    """After SIGKILL, the process that copies finishes its work. Each launch continues from what the
    one before has saved last.
    """
    for done, signum in enumerate((signal.SIGKILL, signal.SIGINT, signal.SIGTERM)):
        agent = begin(tmp_path, STAYS)
        lines = list(until_line(agent, f"saved {done + 1}"))
        assert f"begins at {done}\n" in lines
        agent.send_signal(signum)
        agent.communicate(timeout=LIMIT)
        if signum == signal.SIGKILL:
            until(lambda: not any(path.exists() for path in stages(tmp_path)))
        assert f"step-{done + 1}.pt" in stored(tmp_path)
    last = launch(tmp_path)
    assert begins(last.stdout) == [3], last.stderr


def test_the_next_launch_removes_what_a_kill_of_everything_leaves(tmp_path):
    agent = begin(tmp_path, STAYS)
    list(until_line(agent, "saved 1"))
    (left,) = stages(tmp_path)
    tree = [psutil.Process(agent.pid), *psutil.Process(agent.pid).children(recursive=True)]
    for process in tree:
        process.suspend()
    for process in tree:
        process.kill()
    agent.communicate(timeout=LIMIT)
    assert left.exists()
    assert launch(tmp_path).returncode == 0
    assert not left.exists()


def test_a_stager_that_is_killed_is_replaced_and_nothing_is_lost(tmp_path):
    done = launch(tmp_path, KILLS_STAGER)
    assert done.returncode == 0, done.stderr
    assert "the process that copies checkpoints to storage on" in done.stderr
    assert "was killed and replaced" in done.stderr
    assert {"step-6.pt", "result.txt"} <= set(stored(tmp_path))


def test_a_job_that_cannot_store_its_checkpoints_fails_and_names_them(tmp_path):
    done = launch(tmp_path, BREAKS_STORAGE)
    assert done.returncode == 1, done.stderr
    failed = rf"{tmp_path}/ckpt/step-\d\.pt was not copied to storage: .+; it is tried again\n"
    assert re.search(failed, done.stderr)
    line = only(done.stderr, "lost with the end of the job, not copied to storage")
    assert f"{tmp_path}/ckpt/step-6.pt" in line
    assert "all workers ended with 0, but" in done.stderr


@pytest.mark.parametrize("then", ["die()", "await_new(); die()", "await_new()"])
def test_a_directory_in_memory_that_another_program_deletes_is_made_again(tmp_path, then):
    deletes = f"""
    def die(): os.kill(os.getpid(), signal.SIGKILL)
    def await_new():
        while not os.path.isdir(directory): time.sleep(0.02)
    if step == 2 and not done:
        await_fact("CheckpointStored")
        import shutil
        shutil.rmtree(os.path.dirname(directory))
        {then}
    """
    done = launch(tmp_path, deletes)
    assert done.returncode == 0, done.stderr
    assert only(done.stderr, "--stage: another program has deleted").endswith("; it is made again")
    assert all(begins(done.stdout)[1:])
    names = stored(tmp_path)
    assert names[-1] == "step-6.pt"
    assert not any("~" in name for name in names)  # it has not begun anew


def test_a_full_storage_keeps_the_training_running_and_then_fails_the_job(tmp_path):
    small = with_small(tmp_path / "ckpt", "256k")
    body = TRAIN.replace('"optimizer": {}', '"optimizer": os.urandom((step == 6) << 20)')
    path = script(tmp_path, body.replace("AFTER", ""))
    words = ("--nproc", 1, "--stage", "--checkpoint-dir", "ckpt", path, "ckpt")
    done = hpclaunch(*words, cwd=tmp_path, env=environment(**ENVIRON), before=small)
    assert done.returncode == 1, done.stderr
    assert "saved 6" in done.stdout
    lost = f"{tmp_path}/ckpt/step-6.pt: No space left on device"
    assert only(done.stderr, "lost with the end of the job").endswith(lost)


def test_without_room_for_the_next_checkpoint_the_next_round_saves_to_storage(tmp_path):
    small = with_small(tmp_path / "fast", "4m")
    body = TRAIN.replace('"optimizer": {}', '"optimizer": os.urandom(5 << 19)')
    path = script(tmp_path, body.replace("AFTER", "if not done: await_fact('StageRefused')"))
    words = ("--nproc", 1, "--stage=fast", "--checkpoint-dir", "ckpt", path, "ckpt")
    done = hpclaunch(*words, cwd=tmp_path, env=environment(**ENVIRON), before=small)
    assert done.returncode == 0, done.stderr
    assert "--stage: from the next round on, the script saves to ckpt itself: " in done.stderr
    assert begins(done.stdout) == [0, 1]
    assert stored(tmp_path) == sorted(["new.tmp", *ALL]) or stored(tmp_path) == sorted(ALL)


def test_after_a_save_that_does_not_fit_the_next_round_saves_to_storage(tmp_path):
    small = with_small(tmp_path / "fast", "4m")
    grows = "saving.save({'step': 3, 'more': os.urandom(5 << 20)}, f'{directory}/new.tmp')"
    path = script(tmp_path, TRAIN.replace("AFTER", f"if step in (2, 4): {grows}"))
    words = ("--nproc", 1, "--stage=fast", "--checkpoint-dir", "ckpt", path, "ckpt")
    done = hpclaunch(*words, cwd=tmp_path, env=environment(**ENVIRON), before=small)
    assert done.returncode == 0, done.stderr
    line = only(done.stderr, "--stage: from the next round on, the script saves to ckpt itself")
    assert line.endswith("the file system in memory (tmpfs) was full when a worker failed")
    assert begins(done.stdout) == [0, 2]
    assert {"step-2.pt", *ALL[2:]} <= set(stored(tmp_path))


def test_a_first_save_that_would_use_up_memory_is_made_again_on_storage(tmp_path, limited):
    """On storage, the kernel can free the page cache of a file. In memory, it cannot. The worker of
    each round needs memory from its beginning on.
    """
    model = f"model = bytearray(os.urandom({MIB})) * 120\n"
    grows = f"""
    if step == 1:
        with open(f"{{directory}}/new.tmp", "wb") as file:
            for _ in range(400):
                file.write(bytes({MIB}))
                time.sleep({SLOWLY} if directory != "ckpt" else 0)
"""
    path = script(tmp_path, TRAIN.replace("    saving", f"{grows}    saving").replace("AFTER", ""))
    path.write_text(path.read_text().replace("done = 0", f"{model}done = 0"))
    words = ("--nproc", 1, "--stage", "--checkpoint-dir", "ckpt", path, "ckpt")
    done = hpclaunch(*words, cwd=tmp_path, env=environment(**ENVIRON), before=limited)
    assert done.returncode == 0, done.stderr
    assert "rank 0 on " in only(done.stderr, "was killed by SIGKILL; restart 1 of 3")
    line = only(done.stderr, "--stage: from the next round on, the script saves to ckpt itself")
    assert line.endswith(
        "a save did not fit into the memory limit of this job (cgroup), 400 MiB: the process that "
        "saved was killed before the kernel would kill one"
    )
    assert begins(done.stdout) == [0, 0]
    assert stored(tmp_path) == sorted(ALL)
    assert kernel_kills() == 0


def test_after_the_kernel_has_killed_a_worker_the_next_round_saves_to_storage(tmp_path, limited):
    grows = f"if step == 2 and not done: model = bytearray(os.urandom({MIB})) * 500"
    done = launch(tmp_path, grows, before=limited)
    assert done.returncode == 0, done.stderr
    assert "rank 0 on " in only(done.stderr, "was killed by SIGKILL; restart 1 of 3")
    line = only(done.stderr, "--stage: from the next round on, the script saves to ckpt itself")
    assert line.endswith("the memory was used up, and the kernel killed a process of this job")
    assert begins(done.stdout) == [0, 2]
    assert {"step-2.pt", *ALL[2:]} <= set(stored(tmp_path))


def test_where_nothing_can_be_staged_the_script_saves_to_storage_itself(tmp_path):
    path = script(tmp_path, TRAIN.replace("AFTER", DIES))
    words = ("--nproc", 1, "--stage=/proc", "--checkpoint-dir", "ckpt", path, "ckpt")
    done = hpclaunch(*words, cwd=tmp_path, env=environment(**ENVIRON))
    assert done.returncode == 0, done.stderr
    assert "--stage: the script saves to ckpt itself: " in done.stderr
    assert "in memory" not in done.stderr
    assert begins(done.stdout) == [0, 3]
    assert stored(tmp_path) == sorted(ALL)


def test_a_script_without_the_directory_in_its_arguments_is_named(tmp_path):
    body = TRAIN.replace("AFTER", DIES).replace("sys.argv[1]", "os.environ['HPCLAUNCH_STAGE']")
    words = ("--nproc", 1, "--stage", "--checkpoint-dir", "ckpt", script(tmp_path, body))
    done = hpclaunch(*words, cwd=tmp_path, env=environment(**ENVIRON))
    assert done.returncode == 0, done.stderr
    assert "no argument of the script names ckpt: it has to save in" in done.stderr
    assert begins(done.stdout) == [0, 3]


# It saves in `ckpt` whatever its arguments are.
DIRECT = TRAIN.replace("sys.argv[1]", "'ckpt'")
DIRECT_WORDS = ("--nproc", 1, "--stage", "--checkpoint-dir", "ckpt")
REFUSED = "from the next round on, the script saves to ckpt itself: it has saved step-"


def test_after_a_direct_save_the_next_round_resumes_from_storage(tmp_path):
    body = DIRECT.replace("AFTER", f"await_fact('StageRefused')\n    {DIES}")
    path = script(tmp_path, body)
    done = hpclaunch(*DIRECT_WORDS, path, cwd=tmp_path, env=environment(**ENVIRON))
    assert done.returncode == 0, done.stderr
    assert REFUSED in done.stderr
    assert "in memory)" not in done.stderr
    assert begins(done.stdout) == [0, 3]


def test_a_direct_save_after_a_notice_counts(tmp_path):
    leaves = """if step == 2:
        await_fact('StageRefused')
        signals = []
        signal.signal(signal.SIGUSR1, lambda *_: signals.append(1))
        print("ready", flush=True)
        while not signals:
            time.sleep(0.02)
    if step == 3:
        sys.exit()"""
    path = script(tmp_path, DIRECT.replace("AFTER", leaves))
    agent = start(*DIRECT_WORDS, path, cwd=tmp_path, environ=environment(**ENVIRON))
    list(until_line(agent, "ready"))
    agent.send_signal(signal.SIGUSR1)
    _, written = agent.communicate(timeout=LIMIT)
    assert agent.returncode == 75, written
    assert f"with {tmp_path}/ckpt/step-3.pt" in written


def test_a_checkpoint_that_fails_twice_is_replaced_by_an_older_one_from_storage(tmp_path):
    path = script(tmp_path, FAILS_TO_LOAD.replace("AFTER", ""))
    words = ("--nproc", 1, "--stage", "--checkpoint-dir", "ckpt", path, "ckpt")
    (tmp_path / "ckpt").mkdir()
    make = "import saving; [saving.save({'step': n}, f'ckpt/step-{n}.pt') for n in (1, 2)]"
    subprocess.run(
        [sys.executable, "-c", make], cwd=tmp_path, env=environment(**ENVIRON), check=True
    )
    done = hpclaunch(*words, cwd=tmp_path, env=environment(**ENVIRON))
    assert done.returncode == 0, done.stderr
    assert re.findall(r"tries (\d+)", done.stdout) == ["2", "2", "1"]
    assert "skipping checkpoint step-2.pt: the job failed twice while" in done.stderr


def test_a_hint_about_the_checkpoint_directory_has_its_path_on_storage(tmp_path):
    path = script(tmp_path, SAVES_DIRECTORY)
    words = ("--nproc", 1, "--stage", "--checkpoint-dir", "ckpt", path, "ckpt")
    done = hpclaunch(*words, cwd=tmp_path, env=environment(**ENVIRON))
    assert done.returncode == 0, done.stderr
    assert f"if model.pt is all that is needed: --checkpoint-dir '{tmp_path}/ckpt/*'" in done.stderr


def test_two_machines_save_in_the_memory_of_both(tmp_path):
    """Here, both are one machine. Rank 0 saves, and rank 1 resumes from its own memory."""
    stays = 'if os.environ["RANK"] == "1": sys.exit(time.sleep(0 if done else 600))\n'
    body = TRAIN.replace("os.makedirs", f"{stays}os.makedirs", 1)
    body = body.replace("begins at", 'begins in", os.path.dirname(checkpoint), "at')
    path = script(tmp_path, body.replace("AFTER", DIES))
    words = ["--nproc=1", "--stage", "--checkpoint-dir", "ckpt", "--nnodes=2"]
    words += ["--master-addr=127.0.0.1", f"--master-port={free_port()}"]
    more = {"cwd": tmp_path, **ENVIRON}
    agents = [start_machine(*words, f"--node-rank={r}", path, "ckpt", **more) for r in (1, 0)]
    outputs = [agent.communicate(timeout=LIMIT) for agent in agents]
    errors = "".join(err for _, err in outputs)
    assert [agent.returncode for agent in agents] == [0, 0], errors
    resumed = re.findall(r"begins in (\S+) at 3", "".join(out for out, _ in outputs))
    assert len(set(resumed)) == 2, (outputs, errors)
    assert all(where.startswith(str(BASE)) for where in resumed)
    assert {"step-6.pt", "result.txt"} <= set(stored(tmp_path)) <= set(ALL)
    assert not any(Path(where).exists() for where in resumed)


def test_a_save_that_would_use_up_the_memory_of_one_machine_moves_all_to_storage(tmp_path, limited):
    """The other machine leads. Rank 0, there, has saved step 1 in memory by then."""
    saves = f"""
if os.environ["RANK"] == "1":
    while not os.path.exists("saved"):
        time.sleep(0.02)
    with open(f"{{directory}}/new-1.tmp", "wb") as file:
        for _ in range(400 if directory != "ckpt" else 1):
            file.write(bytes({MIB}))
            time.sleep({SLOWLY})
    sys.exit()
"""
    body = TRAIN.replace("for step", f"{saves}for step", 1)
    after = "open('saved', 'w').close(); time.sleep(0 if directory == 'ckpt' else 600)"
    path = script(tmp_path, body.replace("AFTER", after))
    words = ["--nproc=1", "--stage", "--checkpoint-dir", "ckpt", "--nnodes=2"]
    words += ["--master-addr=127.0.0.1", f"--master-port={free_port()}"]
    more = {"cwd": tmp_path, **ENVIRON}
    agents = [
        start_machine(*words, f"--node-rank={rank}", path, "ckpt", before=before, **more)
        for rank, before in ((1, limited), (0, ()))
    ]
    outputs = [agent.communicate(timeout=LIMIT) for agent in agents]
    errors = "".join(err for _, err in outputs)
    assert [agent.returncode for agent in agents] == [0, 0], errors
    assert "a save did not fit into the memory limit of this job (cgroup), 400 MiB" in errors
    assert begins(outputs[1][0]) == [0, 1]
    assert {*ALL} <= set(stored(tmp_path))
    assert kernel_kills() == 0


@pytest.mark.parametrize("is_the_only_one", [True, False])
def test_a_save_that_is_cut_short_under_its_name_is_restored_from_storage(
    tmp_path, is_the_only_one
):
    body = TRAIN.replace('f"{directory}/step-{step}.pt"', 'f"{directory}/snapshot.pt"')
    if not is_the_only_one:
        (tmp_path / "ckpt").mkdir()
        make = "import saving; saving.save({'step': 1, 'optimizer': {}}, 'ckpt/best.pt')"
        words = [sys.executable, "-c", make]
        subprocess.run(words, cwd=tmp_path, env=environment(**ENVIRON), check=True)
    cut = """
    if step == 3 and done < 2:
        same = "ckpt/snapshot.pt", f"{directory}/snapshot.pt"
        while not os.path.exists(same[0]) or not filecmp.cmp(*same, shallow=False):
            time.sleep(0.02)
        await_fact("CheckpointStored")
        os.truncate(f"{directory}/snapshot.pt", 50)
        os.kill(os.getpid(), signal.SIGKILL)
"""
    path = script(tmp_path, body.replace("AFTER", cut))
    words = ("--nproc", 1, "--stage", "--checkpoint-dir", "ckpt", path, "ckpt")
    done = hpclaunch(*words, cwd=tmp_path, env=environment(**ENVIRON))
    assert done.returncode == 0, done.stderr
    assert begins(done.stdout) == [0 if is_the_only_one else 1, 3]
    assert f"resuming from {tmp_path}/ckpt/snapshot.pt" in done.stderr


BY_NAME = """
import os, saving, shutil, signal, sys
directory, last, done = sys.argv[1], int(sys.argv[2]), 0
name = f"{directory}/checkpoint.pt"
if os.path.exists(name):
    done = saving.load(name)["step"]
print("begins at", done, flush=True)
for step in range(done + 1, last + 1):
    saving.save({"step": step, "optimizer": {}}, name)
    if step == 4 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.truncate(name, 50)
        os.kill(os.getpid(), signal.SIGKILL)
    shutil.copyfile(name, f"{directory}/model_best.pt")
"""


def test_a_script_resumes_by_a_fixed_name_although_another_file_is_newer(tmp_path):
    """So it does if a kill cuts the first save of the second launch."""
    path = script(tmp_path, BY_NAME)
    output = ""
    for last in (3, 5):
        words = ("--nproc", 1, "--stage", "--checkpoint-dir", "ckpt", path, "ckpt", last)
        done = hpclaunch(*words, cwd=tmp_path, env=environment(**ENVIRON))
        assert done.returncode == 0, done.stderr
        output += done.stdout
    assert begins(output) == [0, 3, 3]
    assert stored(tmp_path) == ["checkpoint.pt", "model_best.pt"]
