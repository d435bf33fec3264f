"""The progress that real workers write to shared memory, below a stand-in for the fork server."""

import importlib.util
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from progress_server import HOOKS, LIMIT, python

from hpclaunch.worker.site import _hpclaunch_layout as layout
from surroundings import LIGHT_TORCH, environment, free_port
from torch_version import TORCH

pytestmark = [pytest.mark.starts, pytest.mark.torch]

HPCLAUNCH = Path(sys.executable).parent / "hpclaunch"
MODEL = """
import os, sys, time, torch
model = torch.nn.Linear(4, 2)
def loss():
    return model(torch.ones(3, 4)).sum()
"""
PLAIN = """
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(7):
    optimizer.zero_grad()
    loss().backward()
    optimizer.step()
"""
LIGHT = """
import torch
optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
for _ in range(7):
    optimizer.step()
"""
ACCUMULATED = """
optimizer = torch.optim.AdamW(model.parameters())
for batch in range(12):
    loss().backward()
    if batch % 4 == 3:
        optimizer.step()
"""
TWO_OPTIMIZERS = """
critic = torch.optim.SGD(model.parameters(), lr=0.1)
generator = torch.optim.Adam(torch.nn.Linear(4, 2).parameters())
for batch in range(10):
    loss().backward()
    critic.step()
    if batch % 5 == 4:
        generator.step()
"""
COMPILED = """
model = torch.compile(model, backend="eager")
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(4):
    loss().backward()
    optimizer.step()
"""
FORKED = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loss().backward()
optimizer.step()
if os.fork():
    assert os.wait()[1] == 0
else:
    another = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.step()
        another.step()
"""
SPAWNED = f"""
import multiprocessing, sys
sys.path.insert(0, {LIGHT_TORCH!r})
import torch
def train():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    for _ in range(3):
        optimizer.step()
if __name__ == "__main__":
    spawn = multiprocessing.get_context("spawn")
    children = [spawn.Process(target=train) for _ in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join()
"""


CASES = {
    "plain": (PLAIN, 7),
    "steps, not batches": (ACCUMULATED, 3),
    "of the optimizer with the most": (TWO_OPTIMIZERS, 10),
    "a compiled model": (COMPILED, 4),
    "not those of a forked process": (FORKED, 1),
}


@pytest.mark.parametrize(("text", "steps"), CASES.values(), ids=CASES)
def test_optimizer_steps(server, forks, tmp_path, text, steps):
    server.run(MODEL + text, tmp_path, forks=forks)
    assert server.progress()[0::2] == (steps, "end")


def test_steps_of_processes_below_the_worker(server, tmp_path):
    server.run(python(tmp_path, SPAWNED), tmp_path)
    assert server.progress()[0::2] == (3, "end")


def test_steps_below_a_shell_script(server, tmp_path):
    """The numbers of one program are not taken for those of the next."""
    (tmp_path / "before.py").write_text("import hpclaunch.progress as it\nit.step(1200)")
    inner = shlex.join(python(tmp_path, LIGHT))
    before = f"{sys.executable} -c 'print()'; {sys.executable} before.py"
    path = f"export PYTHONPATH=$PYTHONPATH:{LIGHT_TORCH}"
    server.run(["sh", "-c", f"{path}; {before}; {inner}; exit 0"], tmp_path)
    steps, _, phase, number = server.progress()
    assert (steps, phase, number) == (7, "end", 0)


UNMAPPED = """
import sys

def fail(fd):
    raise OSError("out of memory")

sys.modules["_hpclaunch_progress"]._mapped = fail
import hpclaunch.progress as it
it.step(3)
"""


def test_a_process_that_cannot_map_its_slot_does_not_claim_it(server, tmp_path):
    server.run(UNMAPPED, tmp_path)
    assert server.watch._workers[0].page.number(layout.WRITER) == 0


CLAIM = """
import os, signal, sys, time
sys.path.insert(0, sys.argv[1])
import _hpclaunch_progress as it

def read_slowly(*where, read=os.pread):
    found = read(*where)
    time.sleep(0.3)
    return found

os.pread = read_slowly
memory = os.memfd_create("memory")
os.truncate(memory, it.layout.SLOT)
child = os.fork()
fd = os.open(f"/proc/self/fd/{memory}", os.O_RDWR)
signal.signal(signal.SIGALRM, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, float(sys.argv[2]), 0.05)
os.write(1, str(it.claim(fd, 0, it.layout.WRITER)).encode() + b"\\n")
signal.setitimer(signal.ITIMER_REAL, 0)  # Python takes its handlers away before it ends
os.close(fd)
if child:
    os.wait()
"""


@pytest.mark.parametrize("timer", ["0", "0.05"])
def test_one_of_two_pythons_that_start_together_gets_the_slot(timer):
    command = [sys.executable, "-c", CLAIM, HOOKS, timer]
    said = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    assert sorted(said.split()) == [b"False", b"True"]


def test_a_skipped_step_is_a_sign_of_life(server, forks_or_none, tmp_path):
    text = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
for batch in range(4):
    scaler.scale(loss()).backward()
    if batch == 3:
        model.weight.grad.fill_(float("inf"))
        print(time.monotonic())
    scaler.step(optimizer)
    scaler.update()
"""
    (out,) = server.run(MODEL + text, tmp_path, forks=forks_or_none)
    steps, at, _, _ = server.progress()
    assert steps == 3
    assert at > float(out)


def test_an_optimizer_that_torch_does_not_know(server, forks, tmp_path):
    text = """
class Own:
    def step(self):
        model.weight.data.sub_(model.weight.grad)
own = Own()
for _ in range(3):
    loss().backward()
    own.step()
"""
    server.run(MODEL + text, tmp_path, forks=forks)
    assert server.progress() == (0, 0.0, "start", 0)


SAYING = """
import os, sys
from hpclaunch.progress import phase, step
for number in range(1200, 1203):
    step(number)
phase("my own")
phase("evaluation")
sys.stdout.flush()
os._exit(0)
"""


def test_what_the_script_says(server, tmp_path):
    """The script's first number does not say how many steps it has made."""
    server.run(python(tmp_path, SAYING), tmp_path)
    steps, at, phase, number = server.progress()
    assert (steps, phase, number) == (3, "evaluation", 1202)
    assert at > 0


def test_what_it_says_without_the_launcher(tmp_path):
    command = python(tmp_path, SAYING)
    subprocess.run(command, env=environment(), check=True, timeout=LIMIT)


def test_a_step_ends_the_phase_that_the_script_has_named(server, forks, tmp_path):
    text = """
from hpclaunch.progress import phase
many, few = (torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2))
loss().backward()
many.step()
many.step()
phase("save")
few.step()
sys.stdout.flush()
os._exit(0)
"""
    server.run(MODEL + text, tmp_path, forks=forks)
    assert server.progress()[0::2] == (2, "step")


COMPILED_STEPS = """
import json, logging
import torch._dynamo
from torch._dynamo.utils import counters
class Own(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {})
    @torch.no_grad()
    def step(self):
        for parameter in self.param_groups[0]["params"]:
            parameter.sub_(parameter.grad)
for make in (Own, torch.optim.AdamW):
    for whole in (False, True):
        for step in (lambda: optimizer.step(), None):
            torch._dynamo.reset()
            counters.clear()
            optimizer = make(model.parameters())
            compiled = torch.compile(step or optimizer.step, fullgraph=whole, backend="eager")
            loss().backward()
            try:
                for _ in range(5):
                    compiled()
            except torch._dynamo.exc.Unsupported:
                print("unsupported")
            counts = sum(counters["graph_break"].values()), counters["stats"]
            print(make.__name__, whole, step is None, json.dumps(counts))
"""


@pytest.mark.compiles
def test_a_compiled_step_is_compiled_as_without_the_launcher(server, tmp_path):
    command = python(tmp_path, MODEL + COMPILED_STEPS)
    server.start(command, tmp_path)
    without = subprocess.run(
        command, env=environment(), capture_output=True, check=True, text=True, timeout=LIMIT
    )
    out, err = server.processes[0].communicate(timeout=LIMIT)
    assert out == without.stdout, err
    warm = [HPCLAUNCH, "--nproc", "1", *command[1:]]
    done = subprocess.run(
        warm, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=LIMIT
    )
    assert done.stdout == without.stdout, done.stderr
    assert "Own True True [0, " in out
    # Where torch breaks the graph, of two optimizers, the steps are seen; a script without any may
    # run for long.
    assert server.progress()[0::2] == (10, "end")


def test_steps_in_one_graph_are_nothing_to_learn_from(server, forks, tmp_path):
    text = MODEL + COMPILED_STEPS.replace("(Own, torch.optim.AdamW)", "[Own]")
    server.run(text + "sys.stdout.flush()\nos._exit(0)", tmp_path, forks=forks)
    assert server.progress() == (0, 0.0, "start", 0)


GROUP = """
import torch.distributed as dist
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/met", rank=rank, world_size=2)
"""


@pytest.mark.skipif(TORCH < (2, 7), reason="before torch 2.7, FSDP2 needs a GPU")
def test_sharded_parameters(server, forks, tmp_path):
    text = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(6):
    loss().backward()
    optimizer.step()
dist.destroy_process_group()
"""
    server.run(MODEL + GROUP + text, tmp_path, workers=2, forks=forks)
    assert [server.progress(rank)[0::2] for rank in (0, 1)] == [(6, "end")] * 2


def test_a_pipeline(server, forks, tmp_path):
    text = """
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
takes = (torch.zeros(2, 4),)  # torch before 2.6 needs them
stage = PipelineStage(torch.nn.Linear(4, 4), rank, 2, torch.device("cpu"), input_args=takes)
schedule = ScheduleGPipe(stage, 2, loss_fn=torch.nn.functional.mse_loss)
optimizer = torch.optim.AdamW(stage.submod.parameters())
for _ in range(5):
    schedule.step(*([torch.ones(4, 4)] if not rank else []), target=torch.ones(4, 4))
    optimizer.step()
dist.destroy_process_group()
"""
    server.run(MODEL + GROUP + text, tmp_path, workers=2, forks=forks)
    assert [server.progress(rank)[0::2] for rank in (0, 1)] == [(5, "end")] * 2


# Frameworks

DATA = """
import os, torch
class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 32
    def __getitem__(self, index):
        return {"x": torch.ones(4), "labels": torch.ones(2)}
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 2)
    def forward(self, x, labels):
        return {"loss": ((self.linear(x) - labels) ** 2).mean()}
"""
LIGHTNING = """
import pytorch_lightning
class Module(pytorch_lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = Model()
    def training_step(self, batch, _):
        return self.model(**batch)["loss"]
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())
trainer = pytorch_lightning.Trainer(
    accelerator="cpu", strategy="ddp", devices=2, max_epochs=2, logger=False,
    enable_checkpointing=False, enable_progress_bar=False, accumulate_grad_batches=2,
)
trainer.fit(Module(), torch.utils.data.DataLoader(Samples(), batch_size=2))
print("steps", trainer.global_step)
"""
ACCELERATE = """
import accelerate
accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
model = Model()
optimizer = torch.optim.AdamW(model.parameters())
loader = torch.utils.data.DataLoader(Samples(), batch_size=2)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
steps = 0
for batch in loader:
    with accelerator.accumulate(model):
        accelerator.backward(model(**batch)["loss"])
        optimizer.step()
        optimizer.zero_grad()
    steps += accelerator.sync_gradients
print("steps", steps)
"""
HF_TRAINER = """
import transformers
arguments = transformers.TrainingArguments(
    "out", use_cpu=True, max_steps=9, per_device_train_batch_size=2, report_to=[],
    gradient_accumulation_steps=2, save_strategy="no", disable_tqdm=True,
)
trainer = transformers.Trainer(Model(), arguments, train_dataset=Samples())
trainer.train()
print("steps", trainer.state.global_step)
"""
# Otherwise one in some sixty ends by SIGABRT, with or without hpclaunch: threads of gloo still run
# while Python ends.
LEAVES = """
if torch.distributed.is_initialized():
    torch.distributed.destroy_process_group()
"""


@pytest.mark.frameworks
@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("pytorch_lightning", LIGHTNING),
        ("accelerate", ACCELERATE),
        ("transformers", HF_TRAINER),
    ],
)
def test_frameworks_make_as_many_steps_as_they_say(server, tmp_path, module, text):
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"needs {module}: pip install -e '.[frameworks]'")
    met = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": free_port(),
        "TORCHELASTIC_RUN_ID": "1",
        "GROUP_RANK": 0,
        "LOCAL_WORLD_SIZE": 2,
    }
    outs = server.run(python(tmp_path, DATA + text + LEAVES), tmp_path, workers=2, environ=met)
    for rank, out in enumerate(outs):
        steps = int(out.rpartition("steps")[2])
        assert steps > 3
        assert server.progress(rank)[0] == steps


def test_another_process_with_the_fork_servers_pid(server, tmp_path):
    """Such a process in another namespace may have any files open."""
    file = tmp_path / "precious"
    file.write_bytes(b"x" * 64)
    with file.open("r+b") as opened:
        fd = opened.fileno()
        variable = f"{os.getpid()}:{fd}:0:{fd}:{fd}:{fd}"
        env = environment(
            PYTHONPATH=HOOKS, HPCLAUNCH_STORE="127.0.0.1:1", HPCLAUNCH_PROGRESS=variable
        )
        command = python(tmp_path, SAYING)
        subprocess.run(command, env=env, check=True, timeout=LIMIT)
    assert file.read_bytes() == b"x" * 64
