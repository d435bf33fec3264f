"""The usual ways to save: under the launcher, every restart gets further, and is progress."""

import json
import os
import re
import subprocess

import pytest
from launching import LIMIT, hpclaunch, script, start

from lines import only
from surroundings import LIGHT_TORCH, STAND_INS, environment

pytestmark = pytest.mark.starts

SAVING = {"PYTHONPATH": f"{STAND_INS}:{LIGHT_TORCH}"}  # where the module of this name is
# As in PyTorch's own tutorial: the same file each time, whole under its name.
SNAPSHOT = """
import os, saving
done = 0
if checkpoint := os.environ["HPCLAUNCH_CHECKPOINT"]:
    done = saving.load(checkpoint)["epochs"]
print(f"begins at {done}")
for epoch in range(done, 6):
    saving.save({"epochs": epoch + 1, "optimizer": {}}, "saved/snapshot.tmp")
    os.replace("saved/snapshot.tmp", "saved/snapshot.pt")
    if epoch < 5:
        os.kill(os.getpid(), 9)
"""

# As nanoGPT: it knows where its checkpoint is, and a word says whether to load it.
WITHOUT_PATH = """
import os, saving, sys
settings = {"init_from": "scratch"}
settings |= dict(word.removeprefix("--").split("=") for word in sys.argv[1:])
first = 0
if settings.pop("init_from") == "resume":
    first = saving.load("out/ckpt.pt")["iter_num"]
print(f"begins at {first}", settings)
for step in range(first, 3):
    os.makedirs("out", exist_ok=True)
    saving.save({"iter_num": step + 1, "optimizer": {}}, "out/ckpt.pt")
    if step < 2:
        os.kill(os.getpid(), 9)
"""

# As ImageNet's example with a fixed --resume: it looks for one name, beside which it has the best.
FIXED_NAME = """
import os, saving, sys
last, best = (f"{sys.argv[1]}/{name}.pth.tar" for name in ("checkpoint", "model_best"))
first = saving.load(last)["epoch"] if os.path.exists(last) else 0
print(f"begins at {first}")
for path in (last, best):
    saving.save({"epoch": first + 1, "optimizer": {}}, path)
"""

# The newest is of a model with other sizes, as after a change of the script: torch complains of it
# in a message of many lines.
OTHER_SIZES = """
import os, torch
def layers(size):
    return torch.nn.ModuleList(torch.nn.Linear(size, size) for _ in range(20))
if checkpoint := os.environ["HPCLAUNCH_CHECKPOINT"]:
    layers(2).load_state_dict(torch.load(checkpoint)["model"])
    print("begins at", os.path.basename(checkpoint)[-4])
else:
    for step, size in ((1, 2), (2, 3)):
        saved = {"model": layers(size).state_dict(), "optimizer": {}}
        torch.save(saved, f"saved/step-{step}.pt")
    os._exit(3)
"""

TRAINER = """
import os, sys, torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

class Die(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        if state.global_step == 35 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            if os.environ["RANK"] == "1":
                os.kill(os.getpid(), 9)

    def on_train_begin(self, args, state, control, **_):
        if os.environ["RANK"] == "0":
            print("begins at", state.global_step, flush=True)

data = [{"input_ids": torch.arange(8), "labels": torch.arange(8)}] * 512
model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=1, vocab_size=16, n_positions=8))
args = TrainingArguments(
    output_dir="out", use_cpu=True, report_to=[], save_steps=10, max_steps=40, disable_tqdm=True,
    per_device_train_batch_size=1, logging_strategy="no",
)
trainer = Trainer(model=model, args=args, train_dataset=data, callbacks=[Die()])
trainer.train(resume_from_checkpoint=os.environ["HPCLAUNCH_CHECKPOINT"] or None)
"""


def begins(text):
    return [int(step) for step in re.findall(r"begins at (\d+)", text)]


def test_one_file_saved_over_and_over_is_progress_each_time(tmp_path):
    """Five faults, of which a restart may answer two without progress."""
    (tmp_path / "saved").mkdir()
    args = ("--nproc", 1, "--max-restarts", 2, "--checkpoint-dir", "saved")
    done = hpclaunch(*args, script(tmp_path, SNAPSHOT), cwd=tmp_path, env=environment(**SAVING))
    assert done.returncode == 0, done.stderr
    assert begins(done.stdout) == [0, 1, 2, 3, 4, 5]


def test_a_script_that_only_has_to_know_that_there_is_one(tmp_path):
    settings = "{'run': '${x}'}"
    resume = ("--checkpoint-dir", "out", "--resume-with", "--init_from=resume --run=${x}")
    path = script(tmp_path, WITHOUT_PATH)
    words = ("--nproc", 1, *resume, path, "--init_from=scratch")
    done = hpclaunch(*words, cwd=tmp_path, env=environment(**SAVING))
    assert done.returncode == 0, done.stderr
    begun = ["begins at 0 {}", f"begins at 1 {settings}", f"begins at 2 {settings}"]
    assert done.stdout.splitlines() == begun


@pytest.mark.parametrize("excluded", ["model_best*", "*.log"])
def test_one_that_looks_for_a_fixed_name_finds_it_in_memory(tmp_path, excluded):
    (tmp_path / "saved").mkdir()
    words = ("--nproc", 1, "--stage", "--checkpoint-dir", "saved")
    words += ("--checkpoint-exclude", excluded, script(tmp_path, FIXED_NAME), "saved")
    for launch in range(2):
        done = hpclaunch(*words, cwd=tmp_path, env=environment(**SAVING))
        assert done.returncode == 0, done.stderr
        assert begins(done.stdout) == [launch]
        assert (tmp_path / "saved" / "model_best.pth.tar").exists()


def test_one_that_does_not_fit_the_model_is_passed_over(tmp_path):
    (tmp_path / "saved").mkdir()
    args = ("--nproc", 1, "--checkpoint-dir", "saved")
    done = hpclaunch(*args, script(tmp_path, OTHER_SIZES), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "skipping checkpoint step-2.pt: the job failed twice while" in done.stderr
    assert begins(done.stdout) == [1]


def test_without_progress_the_restarts_are_used_up(tmp_path):
    (tmp_path / "saved").mkdir()
    body = SNAPSHOT.replace("for epoch in range(done, 6):", "for epoch in [0]:")
    body = body.replace("    saving.save", "    if not done: saving.save")
    body = body.replace("    os.replace", "    if not done: os.replace")
    args = ("--nproc", 1, "--max-restarts", 2, "--checkpoint-dir", "saved")
    done = hpclaunch(*args, script(tmp_path, body), cwd=tmp_path, env=environment(**SAVING))
    assert done.returncode == 137
    assert begins(done.stdout) == [0, 1, 1]


@pytest.mark.frameworks
def test_the_trainer_resumes_from_its_checkpoint(tmp_path):
    """The most used trainer is killed at step 35, and resumes from step 30."""
    pytest.importorskip("transformers")
    args = ("--nproc", 2, "--checkpoint-dir", "out")
    env = environment(OMP_NUM_THREADS=1, HF_HUB_OFFLINE=1)
    done = hpclaunch(*args, script(tmp_path, TRAINER), cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    assert begins(done.stdout) == [0, 30]
    chosen = tmp_path / "out" / "checkpoint-30"
    assert f"resuming from {chosen} (HF Trainer, step 30, by its name)" in done.stderr
    assert json.loads((tmp_path / "out" / "checkpoint-40" / "trainer_state.json").read_text())


DIES = "import os; os._exit(9) if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0' else None\n"


@pytest.mark.parametrize(
    ("file", "why"),
    [
        ("", "nothing has been saved in --checkpoint-dir yet"),
        ("weights.npz", "saved has weights.npz, but nothing in a known format"),
        ("run/weights/last.pt", "saved/**' also searches the directories below it"),
    ],
)
def test_a_restart_without_a_checkpoint_says_why(tmp_path, file, why):
    line = restart_line(tmp_path, file)
    assert "training begins again from the start, without a checkpoint: " in line
    assert why in line


def test_a_restart_says_that_no_checkpoint_can_be_used(tmp_path):
    """The script may load one that hpclaunch skips."""
    line = restart_line(tmp_path, "step-1.pt")
    assert "from the start, unless the script finds a checkpoint itself: none can be used" in line


def restart_line(tmp_path, file):
    """Return the line on the restart of a script that has made this file in --checkpoint-dir."""
    (tmp_path / "saved").mkdir()
    within = f"import os; os.makedirs('saved/{os.path.dirname(file)}', exist_ok=True)\n"
    body = (f"{within}open('saved/{file}', 'w').close()\n" if file else "") + DIES
    args = ("--nproc", 1, "--checkpoint-dir", "saved")
    done = hpclaunch(*args, script(tmp_path, body), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    return only(done.stderr, "training begins")


SAVES_BY_ITSELF = """
import os, time, torch
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    os.makedirs("runs/today/checkpoints")
    torch.save({"optimizer": {}}, "runs/today/checkpoints/step-1.pt")
    os._exit(9)
limit = time.monotonic() + 60
while "has saved" not in open("messages").read() and time.monotonic() < limit:
    time.sleep(0.1)
"""


@pytest.mark.parametrize(
    ("words", "where"),
    [((), "'runs/**'"), (("--save_dir=runs/today",), "runs/today"), (("--save_dir=.",), "'./**'")],
)
def test_a_restart_without_a_directory_names_the_one_that_the_script_saves_in(
    tmp_path, words, where
):
    with (tmp_path / "messages").open("w") as messages:
        words = ("--nproc=1", script(tmp_path, SAVES_BY_ITSELF), *words)
        environ = environment(PYTHONPATH=LIGHT_TORCH)
        agent = start(*words, cwd=tmp_path, environ=environ, stderr=messages)
        agent.communicate(timeout=LIMIT)
        assert agent.returncode == 0
    said = (tmp_path / "messages").read_text()
    assert "training begins again, unless the script finds its checkpoints itself" in said
    path = tmp_path / "runs/today/checkpoints/step-1.pt"
    assert f"the script has saved {path} itself: --checkpoint-dir {where} would give" in said


KILLS_THE_SEARCH = """
import os, signal, subprocess
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    open("saved/step-1.pt", "wb").close()
    pids = subprocess.check_output(["pgrep", "-f", "checkpoints.service", "-P", AGENT], text=True)
    for pid in pids.split():
        os.kill(int(pid), signal.SIGKILL)
    os.kill(os.getpid(), 9)
print("again")
"""


def continues_without_its_search(tmp_path, body):
    (tmp_path / "saved").mkdir()
    body = body.replace("AGENT", "os.environ['TEST_AGENT']")
    launch = f"export TEST_AGENT=$$; exec {hpclaunch_words()} --nproc 1 --checkpoint-dir saved "
    launch += script(tmp_path, body).name
    done = subprocess.run(
        ["sh", "-c", launch], cwd=tmp_path, env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "again\n"
    assert "skipping checkpoint step-1.pt: empty" in done.stderr


def test_a_search_that_is_killed_is_replaced(tmp_path):
    continues_without_its_search(tmp_path, KILLS_THE_SEARCH)


def test_a_search_that_hangs_is_replaced_and_stops_nothing(tmp_path):
    """The search is stopped here, as if the file system did not answer."""
    body = KILLS_THE_SEARCH.replace("signal.SIGKILL", "signal.SIGSTOP")
    continues_without_its_search(tmp_path, body)


def hpclaunch_words():
    from launching import HPCLAUNCH

    return os.fspath(HPCLAUNCH)
