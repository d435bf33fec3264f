"""What a worker tells of itself in shared memory: real ones, below a fork server that is played."""

import contextlib
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import pytest

import hpclaunch
from hpclaunch.agent.evidence import state_of
from hpclaunch.worker.progress_watch import ProgressWatch, is_traced
from hpclaunch.worker.site._hpclaunch_progress import PHASES, SIGNAL
from surroundings import environment

pytestmark = pytest.mark.torch

HOOKS = Path(hpclaunch.__file__).parent / "worker" / "site"
HPCLAUNCH = Path(sys.executable).parent / "hpclaunch"
TORCH = tuple(map(int, version("torch").split(".")[:2]))
LIMIT = 120  # seconds; far more than any of this takes

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
SPAWNED = """
import torch.multiprocessing
def train(rank):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        loss().backward()
        optimizer.step()
if __name__ == "__main__":
    torch.multiprocessing.spawn(train, nprocs=2)
"""


class Server:
    """The fork server's part."""

    def __init__(self):
        self.watch = ProgressWatch()
        self.processes = []

    def start(self, command, cwd, *, workers=1, environ=()):
        told = [{"rank": rank, "env": {}} for rank in range(workers)]
        self.watch.begin(told, told=True)
        for rank, worker in enumerate(told):
            own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": workers, **dict(environ)}
            store = {"PYTHONPATH": HOOKS, "HPCLAUNCH_STORE": "127.0.0.1:1"}
            env = environment(**store, **own, **worker["env"])
            pipe = subprocess.PIPE
            process = subprocess.Popen(
                command,
                cwd=cwd,
                env=env,
                stdin=pipe,
                stdout=pipe,
                stderr=pipe,
                text=True,
                start_new_session=True,
            )
            self.processes.append(process)
        return self.processes[0]

    def run(self, command, cwd, **how):
        """What they have written to stdout, once all have ended."""
        self.start(command, cwd, **how)
        ends = [process.communicate(timeout=LIMIT) for process in self.processes]
        codes = [process.returncode for process in self.processes]
        assert not any(codes), (codes, [err[-2000:] for _, err in ends])
        return [out for out, _ in ends]

    def told(self, rank=0):
        """(steps, the time of the last one, phase, the script's number of it)"""
        steps, at, phase, number = self.watch._files.slot(rank)
        return steps, at, PHASES[phase], number

    def evidence(self):
        """Of the first worker, as the fork server asks for it."""
        pids = {0: self.processes[0].pid}
        for pause in self.watch.ask(pids):
            time.sleep(pause)
        (found,) = self.watch.evidence(pids)
        return found

    def end(self):
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate(timeout=LIMIT)
        self.watch.end()


@pytest.fixture
def server():
    server = Server()
    yield server
    server.end()


def python(directory, text):
    path = directory / "train.py"
    path.write_text(text)
    return [sys.executable, str(path)]


BROOD = """
import json, os, sys, torch._dynamo
from _hpclaunch_hooks import progress
for variable, text in json.loads(sys.argv[1]):
    if not os.fork():
        os.environ["HPCLAUNCH_PROGRESS"] = variable
        progress.begin()
        exec(text)
        sys.exit()
    assert os.wait()[1] == 0
"""
CASES = {
    "plain": (PLAIN, 7),
    "steps, not batches": (ACCUMULATED, 3),
    "of the optimizer with the most": (TWO_OPTIMIZERS, 10),
    "a compiled model": (COMPILED, 4),
    "not those of a forked process": (FORKED, 1),
}


def test_optimizer_steps(server, tmp_path):
    """Of workers that are forked, as from the template."""
    told = [{"rank": rank, "env": {}} for rank in range(len(CASES))]
    server.watch.begin(told, told=True)
    texts = [MODEL + text for text, _ in CASES.values()]
    variables = [each["env"]["HPCLAUNCH_PROGRESS"] for each in told]
    each = json.dumps(list(zip(variables, texts, strict=True)))
    env = environment(PYTHONPATH=HOOKS, HPCLAUNCH_STORE="127.0.0.1:1")
    subprocess.run([*python(tmp_path, BROOD), each], env=env, check=True, timeout=LIMIT)
    found = {name: server.told(rank)[0::2] for rank, name in enumerate(CASES)}
    assert found == {name: (steps, "end") for name, (_, steps) in CASES.items()}


def test_steps_of_processes_below_the_worker(server, tmp_path):
    server.run(python(tmp_path, MODEL + SPAWNED), tmp_path)
    assert server.told()[0::2] == (3, "end")


def test_steps_below_a_shell_script(server, tmp_path):
    inner = " ".join(python(tmp_path, MODEL + PLAIN))
    server.run(["sh", "-c", f"{sys.executable} -c 'print()'; {inner}; exit 0"], tmp_path)
    assert server.told()[0::2] == (7, "end")


def test_a_skipped_step_is_a_sign_of_life(server, tmp_path):
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
    (out,) = server.run(python(tmp_path, MODEL + text), tmp_path)
    steps, at, _, _ = server.told()
    assert steps == 3
    assert at > float(out)


def test_an_optimizer_that_torch_does_not_know(server, tmp_path):
    text = """
class Own:
    def step(self):
        model.weight.data.sub_(model.weight.grad)
own = Own()
for _ in range(3):
    loss().backward()
    own.step()
"""
    server.run(python(tmp_path, MODEL + text), tmp_path)
    assert server.told() == (0, 0.0, "start", 0)


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
    """Where it begins to count does not say how many steps it has made."""
    server.run(python(tmp_path, SAYING), tmp_path)
    steps, at, phase, number = server.told()
    assert (steps, phase, number) == (3, "evaluation", 1202)
    assert at > 0


def test_what_it_says_without_the_launcher(tmp_path):
    command = python(tmp_path, SAYING)
    subprocess.run(command, env=environment(), check=True, timeout=LIMIT)


def test_a_step_ends_the_phase_that_the_script_has_named(server, tmp_path):
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
    server.run(python(tmp_path, MODEL + text), tmp_path)
    assert server.told()[0::2] == (2, "step")


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
            told = sum(counters["graph_break"].values()), counters["stats"]
            print(make.__name__, whole, step is None, json.dumps(told))
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
    assert server.told()[0::2] == (10, "end")


def test_steps_in_one_graph_are_nothing_to_learn_from(server, tmp_path):
    text = MODEL + COMPILED_STEPS.replace("(Own, torch.optim.AdamW)", "[Own]")
    server.run(python(tmp_path, text + "sys.stdout.flush()\nos._exit(0)"), tmp_path)
    assert server.told() == (0, 0.0, "start", 0)


GROUP = """
import torch.distributed as dist
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/met", rank=rank, world_size=2)
"""


@pytest.mark.skipif(TORCH < (2, 7), reason="before torch 2.7, FSDP2 needs a GPU")
def test_sharded_parameters(server, tmp_path):
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
    server.run(python(tmp_path, MODEL + GROUP + text), tmp_path, workers=2)
    assert [server.told(rank)[0::2] for rank in (0, 1)] == [(6, "end")] * 2


def test_a_pipeline(server, tmp_path):
    text = """
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
takes = (torch.zeros(2, 4),)  # before torch 2.6, it has to be told
stage = PipelineStage(torch.nn.Linear(4, 4), rank, 2, torch.device("cpu"), input_args=takes)
schedule = ScheduleGPipe(stage, 2, loss_fn=torch.nn.functional.mse_loss)
optimizer = torch.optim.AdamW(stage.submod.parameters())
for _ in range(5):
    schedule.step(*([torch.ones(4, 4)] if not rank else []), target=torch.ones(4, 4))
    optimizer.step()
dist.destroy_process_group()
"""
    server.run(python(tmp_path, MODEL + GROUP + text), tmp_path, workers=2)
    assert [server.told(rank)[0::2] for rank in (0, 1)] == [(5, "end")] * 2


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
def test_frameworks_make_as_many_steps_as_they_say(server, tmp_path, module, text, free_port):
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"needs {module}: pip install -e '.[frameworks]'")
    met = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": free_port,
        "TORCHELASTIC_RUN_ID": "1",
        "GROUP_RANK": 0,
        "LOCAL_WORLD_SIZE": 2,
    }
    outs = server.run(python(tmp_path, DATA + text + LEAVES), tmp_path, workers=2, environ=met)
    for rank, out in enumerate(outs):
        steps = int(out.rpartition("steps")[2])
        assert steps > 3
        assert server.told(rank)[0] == steps


@pytest.fixture
def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


# Where they are


def stacks_of(server, command, cwd):
    """What is known of a worker that has said that it is there."""
    process = server.start(command, cwd)
    assert process.stdout.readline() == "there\n", process.communicate()
    return server.evidence()


HEARS = "import torch\ntorch.optim.SGD([torch.ones(1)], lr=0.1)\n"


@pytest.mark.parametrize("before", ["", HEARS])
def test_stacks_of_all_threads_while_native_code_holds_the_lock(server, tmp_path, before):
    text = """
import ctypes, threading
def waits():
    threading.Event().wait()
def holds():
    print("there", flush=True)
    ctypes.PyDLL(None).sleep(1000)
threading.Thread(target=waits, daemon=True).start()
holds()
"""
    found = stacks_of(server, python(tmp_path, before + text), tmp_path)
    assert " in waits\n" in found["stacks"]
    assert " in holds\n" in found["stacks"]
    assert found["stacks"].rstrip().endswith("in <module>")


@pytest.mark.parametrize("kind", ["CDLL", "PyDLL"])
def test_stacks_while_the_kernel_holds_up_the_main_thread(server, tmp_path, kind):
    """As in a read from a file system that has stalled: here until a child has begun. The main
    thread has let go of Python's lock, or, as if the file were mapped into memory, has not."""
    text = f"""
import ctypes, signal
libc, stack, size = ctypes.{kind}(None), ctypes.create_string_buffer(1 << 16), 1 << 16
top = ctypes.c_void_p((ctypes.addressof(stack) + size) & ~15)
never = ctypes.create_string_buffer(64)  # a semaphore: unlike pause(), it outlasts the signal
CLONE_VM, CLONE_VFORK = 0x100, 0x4000
def is_held_up():
    print("there", flush=True)
    libc.clone(libc.sem_wait, top, CLONE_VM | CLONE_VFORK | signal.SIGCHLD, never)
is_held_up()
"""
    found = stacks_of(server, python(tmp_path, HEARS + text), tmp_path)
    assert found["processes"][0]["state"] == "D"
    assert " in is_held_up\n" in found["stacks"]
    assert found["stacks"].rstrip().endswith("in <module>")


RUNNING = """
import ctypes, io, sys, textwrap, threading, time, tokenize
import torch
PAUSE = float(sys.argv[1])
def runs():
    text = "def f(x):\\n    return sorted([y for y in range(x)], key=lambda y: -y)"
    code = compile(text, "f", "exec")
    while True:
        exec(code, found := {})
        found["f"](9)
        textwrap.wrap("a b c d e f" * 9)
        time.sleep(PAUSE) if PAUSE else None
        list(tokenize.generate_tokens(io.StringIO("a = 1\\n").readline))
def waits():
    threading.Thread(target=runs, daemon=True).start()
    print("there", flush=True)
    while True:
        ctypes.CDLL(None).sleep(1000)
"""


@pytest.mark.parametrize(("trains", "pause"), [(True, 0), (False, 0), (False, 0.002)])
def test_no_worker_dies_of_a_question(server, tmp_path, trains, pause):
    """What reads stacks while other threads change them finds memory that is gone: asked by signal
    at any moment, such a worker dies within a few questions."""
    text = RUNNING
    if trains:
        text += HEARS
    process = server.start([*python(tmp_path, text + "waits()"), str(pause)], tmp_path)
    assert process.stdout.readline() == "there\n", process.communicate()
    for _ in range(20):
        stacks = server.evidence()["stacks"]
        assert process.poll() is None
        if trains:  # else there may be no moment in which it can be asked
            assert " in waits\n" in stacks
            assert " in runs\n" in stacks


def test_forked_processes_come_after_the_worker(server, tmp_path):
    text = """
import torch, time
class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        if index == 0:
            time.sleep(1000)
        return index
def waits():
    print("there", flush=True)
    next(batches)
batches = iter(torch.utils.data.DataLoader(Samples(), num_workers=2))
waits()
"""
    found = stacks_of(server, python(tmp_path, text), tmp_path)
    assert " in waits\n" in found["stacks"]
    assert " in __getitem__\n" not in found["stacks"]
    pids = {each["pid"] for each in found["processes"]}
    assert len(found["forked"]) == 2
    assert {pid for pid, _ in found["forked"]} < pids
    assert sum(" in __getitem__\n" in text for _, text in found["forked"]) == 1


def test_the_process_that_trains_answers_for_a_launcher_of_the_scripts(server, tmp_path):
    text = """
def waits():
    torch.optim.SGD(model.parameters(), lr=0.1)
    print("there", flush=True)
    time.sleep(1000)
waits()
"""
    inner = python(tmp_path, MODEL + text)
    outer = f"import subprocess, sys\nsubprocess.run({inner!r})"
    found = stacks_of(server, [sys.executable, "-c", outer], tmp_path)
    assert " in waits\n" in found["stacks"]


OWN_HANDLER = f"""
import signal, sys, time
signal.signal({SIGNAL}, lambda *_: print("mine", flush=True))
"""


def test_a_handler_that_was_there_before_stays_and_is_not_called(server, tmp_path):
    """As one in sitecustomize that a worker has from the template."""
    (tmp_path / "train.py").write_text("import time\nprint('there', flush=True)\ntime.sleep(1000)")
    before = f"{OWN_HANDLER}\nimport runpy\nsys.path.insert(0, {str(HOOKS)!r})\n"
    begins = "import _hpclaunch_hooks\nrunpy.run_path('train.py')"
    found = stacks_of(server, [sys.executable, "-S", "-E", "-c", before + begins], tmp_path)
    assert found["stacks"] == ""
    server.processes[0].kill()
    assert server.processes[0].stdout.read() == ""


@pytest.mark.parametrize(
    "closes",
    [
        "os.closerange(3, 4096)",
        f"import faulthandler; faulthandler.unregister({SIGNAL})",
        "os.dup2(os.open('mine', os.O_WRONLY | os.O_CREAT), 900)",
    ],
)
def test_a_script_that_takes_away_what_is_needed_is_left_alone(server, tmp_path, closes):
    text = f"import os, time\n{closes}\nprint('there', flush=True)\ntime.sleep(1000)"
    found = stacks_of(server, python(tmp_path, text), tmp_path)
    assert found["stacks"] == ""
    assert server.processes[0].poll() is None
    mine = tmp_path / "mine"
    assert not mine.exists() or not mine.read_text()


def test_a_script_that_a_debugger_has_stopped(server, tmp_path):
    text = """
import pdb
def stops():
    pdb.set_trace()
    return 1
stops()
"""
    process = server.start(python(tmp_path, text), tmp_path)
    assert process.stdout.readline().startswith("> ")  # what pdb writes first
    state = state_of(server.evidence())
    assert state.debugged
    assert state.place.startswith("train.py:")
    assert state.place.endswith(", stops")


SEIZES = """
import ctypes, sys, time
PTRACE_SEIZE = 0x4206
if ctypes.CDLL(None).ptrace(PTRACE_SEIZE, int(sys.argv[1]), None, None):
    sys.exit("not allowed")
print("there", flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize(("name", "debugs"), [("gdb", True), ("py-spy", False)])
def test_who_looks_at_a_worker_for_a_moment_debugs_nothing(tmp_path, name, debugs):
    """The agent itself looks at workers that hang with py-spy, if there is one."""
    (tmp_path / name).symlink_to(sys.executable)  # the kernel goes by this name
    with contextlib.ExitStack() as ends:

        def start(*command):
            process = ends.enter_context(
                subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            )
            ends.callback(process.kill)
            return process

        looked_at = start("sleep", "1000")
        assert not is_traced(looked_at.pid)
        looker = start(tmp_path / name, "-I", "-S", "-c", SEIZES, str(looked_at.pid))
        if looker.stdout.readline() != "there\n":
            pytest.skip(f"ptrace: {looker.stderr.read()}")
        assert is_traced(looked_at.pid) == debugs


def test_few_descriptors(server, tmp_path):
    text = "import time\nprint('there', flush=True)\ntime.sleep(1000)"
    command = ["sh", "-c", 'ulimit -n 64; exec "$@"', "sh", *python(tmp_path, text)]
    assert " in <module>\n" in stacks_of(server, command, tmp_path)["stacks"]


def test_a_fork_server_without_descriptors_goes_on(monkeypatch):
    def memfd_create(_):
        raise OSError("too many open files")

    monkeypatch.setattr("os.memfd_create", memfd_create)
    watch = ProgressWatch()
    worker = {"rank": 0, "env": {}}
    watch.begin([worker], told=True)
    assert worker["env"] == {}
    assert watch.left() is None
    assert watch.look({0: 1}) is None
    assert list(watch.ask({0: 1})) == []
    assert watch.evidence({0: 1}) == []
    watch.end()


def test_another_process_with_the_fork_servers_pid(server, tmp_path):
    """In another namespace, it may have any files open."""
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
