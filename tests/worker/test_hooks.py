"""The hooks in worker processes: real ones, with a store that another process serves."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import surroundings
from hpclaunch.system.processes.fork_server_client import SITE
from surroundings import free_port

pytestmark = [pytest.mark.starts, pytest.mark.torch]

HOOKS = Path(SITE)
LIMIT = 200  # seconds; far more than any of this takes

WORKER_SCRIPT = """
import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

RANK, SOON = int(os.environ["RANK"]), timedelta(seconds=200)

def check(world=2, **how):
    dist.init_process_group("gloo", timeout=SOON, **how)
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == world, total
    dist.destroy_process_group()
"""

AWAITS_NOTHING_ELSE = """
import sys

for finder in sys.meta_path:
    awaited = {name.partition(".")[0] for name in getattr(finder, "awaited", ())}
    assert awaited <= {"deepspeed", "transformers"}  # whatever is installed
"""

STORE_SCRIPT = """
import sys
from torch.distributed import TCPStore

for _ in sys.stdin:
    store = None
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    print(store.port, flush=True)
"""


class Store:
    """Another process, which serves the rounds' stores."""

    def __init__(self, forks):
        self.process = forks.start(STORE_SCRIPT)

    def port(self):
        """Return the address of a fresh store, and close the last one."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def end(self):
        self.process.communicate(timeout=LIMIT)


@pytest.fixture(scope="module")
def store(forks):
    store = Store(forks)
    yield store
    store.end()


@pytest.fixture
def processes():
    """Yield a list for the processes that a test starts; kill them at its end."""
    started = []
    yield started
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def environment(*path, **changes):
    """Return the environment below a worker, with `path` as the user's PYTHONPATH."""
    users = {"PYTHONPATH": os.pathsep.join(map(str, path))} if path else {}
    return surroundings.environment(**users, **changes)


def worker_environment(port, rank=0, world=1, restarts=0):
    return environment(
        HOOKS,
        RANK=rank,
        WORLD_SIZE=world,
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=port,
        TORCHELASTIC_USE_AGENT_STORE=True,
        TORCHELASTIC_RESTART_COUNT=restarts,
        TORCHELASTIC_RUN_ID="71.0",
        HPCLAUNCH_STEP="71.0",
        HPCLAUNCH_RUN_ID="71.0",
        HPCLAUNCH_STORE=f"127.0.0.1:{port}",
    )


def start(processes, command, cwd, env):
    out, err = subprocess.PIPE, subprocess.PIPE
    process = subprocess.Popen(
        command, cwd=cwd, env=env, stdout=out, stderr=err, text=True, start_new_session=True
    )
    processes.append(process)
    return process


def start_rank_0(processes, port, cwd, text, *args):
    """Start the first of two ranks in a new interpreter, which imports torch below the hooks."""
    script = cwd / "train.py"
    script.write_text(WORKER_SCRIPT + text)
    command = [sys.executable, "-u", str(script), *map(str, args)]
    return start(processes, command, cwd, worker_environment(port, 0, 2))


def fork_ranks(forks, port, cwd, text, *args, ranks=(0, 1), world=2, restarts=0):
    """Start these ranks: fork them from a process with torch."""
    arguments = f"import sys\nsys.argv[1:] = {[*map(str, args)]}\n"
    environs = [worker_environment(port, rank, world, restarts) for rank in ranks]
    return [forks.start(arguments + WORKER_SCRIPT + text, cwd=cwd, env=env) for env in environs]


def end_well(ranks):
    for process in ranks:
        out, err = process.communicate(timeout=LIMIT)
        assert process.returncode == 0, out + err


def test_the_launchers_store_and_addresses_of_the_scripts_own(store, forks, processes, tmp_path):
    text = (
        """
check()  # env://, the launcher's

launchers, tcp, unranked, env, taken = sys.argv[1:]
by_another_name, *_ = next(dist.rendezvous(f"tcp://localhost:{launchers}", RANK, 2, timeout=SOON))
by_another_name.set(f"rank {RANK}", "here")
by_another_name.wait(["rank 0", "rank 1"], SOON)

check(init_method=f"tcp://127.0.0.1:{tcp}", rank=RANK, world_size=2)

check(init_method=f"tcp://127.0.0.1:{unranked}")  # as scripts for MPI, which knows the ranks
check(init_method=f"file://{os.getcwd()}/unranked")

os.environ["MASTER_PORT"] = env
check()

os.environ["MASTER_PORT"] = taken
try:
    check(rank=0, world_size=1)
except RuntimeError as e:  # since torch 2.5 a DistNetworkError
    assert "EADDRINUSE" in str(e), e
else:
    raise AssertionError("joined whatever listens there")

assert os.environ["TORCHELASTIC_USE_AGENT_STORE"] == "True"
"""
        + AWAITS_NOTHING_ELSE
    )
    port = store.port()
    with socket.create_server(("", 0)) as another:
        ports = (port, free_port(), free_port(), free_port(), another.getsockname()[1])
        first = start_rank_0(processes, port, tmp_path, text, *ports)
        end_well([first, *fork_ranks(forks, port, tmp_path, text, *ports, ranks=[1])])


def test_rpc_in_the_round_and_in_a_world_of_ones_own(store, forks, tmp_path):
    text = """
from torch.distributed import rpc

rpc.init_rpc(f"worker{RANK}", rank=RANK, world_size=2)
assert rpc.rpc_sync(f"worker{1 - RANK}", abs, args=(-RANK,)) == RANK
rpc.shutdown()

if RANK == 0:
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", sys.argv[1]
    rpc.init_rpc("worker", rank=0, world_size=1)
    assert rpc.rpc_sync("worker", abs, args=(-5,)) == 5
    rpc.shutdown()
"""
    end_well(fork_ranks(forks, store.port(), tmp_path, text, free_port()))


def test_a_worker_that_spawns_its_own(store, forks, tmp_path):
    trains = """
def train(rank):
    check(rank=rank, world_size=2)
"""
    (tmp_path / "trains.py").write_text(WORKER_SCRIPT + trains)
    text = """
sys.path.insert(0, os.getcwd())  # for its children, too
from trains import train

os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", sys.argv[1]
torch.multiprocessing.spawn(train, nprocs=2)
"""
    one = {"ranks": [0], "world": 1}
    end_well(fork_ranks(forks, store.port(), tmp_path, text, free_port(), **one))


def test_a_launcher_in_a_worker_has_its_own_store(store, processes, tmp_path):
    (tmp_path / "train.py").write_text(WORKER_SCRIPT + "check(1)")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "train.py"]
    end_well([start(processes, torchrun, tmp_path, worker_environment(store.port()))])


def test_a_file_of_a_killed_round_is_not_read_again(store, forks, tmp_path):
    meeting = tmp_path / "meeting"
    text = """
dist.init_process_group("gloo", init_method=sys.argv[1], timeout=SOON, rank=RANK, world_size=2)
dist.barrier()
print("met", flush=True)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    sys.stdin.read()
dist.destroy_process_group()
"""
    for restarts in range(2):
        port, uri = store.port(), f"file://{meeting}"  # torch decodes no %20
        ranks = fork_ranks(forks, port, tmp_path, text, uri, restarts=restarts)
        assert [rank.stdout.readline() for rank in ranks] == ["met\n", "met\n"]
        if restarts == 0:
            for rank in ranks:
                rank.kill()
                rank.communicate()
            assert set(tmp_path.glob("meeting*")) == {tmp_path / f"meeting.71.0.0.{port}"}
    end_well(ranks)


def python(*args, cwd, env):
    command = [sys.executable, *args]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=LIMIT)


ONES_OWN = {
    "a good one": "import sys; sys.flag = 'set by the user'; print(__file__)",
    "a broken one": "import sys; sys.flag = 'set'; boom",
    "one that misses a module": "import sys; sys.flag = 'set'; import not_there",
    "none": None,
}


@pytest.mark.parametrize("launched", [True, False])
@pytest.mark.parametrize("text", ONES_OWN.values(), ids=ONES_OWN)
def test_python_starts_as_without_the_hooks(tmp_path, text, launched):
    """The path, the user's own sitecustomize and Python's messages about it are the same."""
    users = tmp_path / "users"
    users.mkdir()
    (users / "worker.py").write_text("mine = True")
    if text is not None:
        (users / "sitecustomize.py").write_text(text)
    show = (
        "import sys, worker; assert worker.mine; "
        "print(sys.path, vars(sys).get('flag'), sys.modules.get('sitecustomize'))"
    )
    names = {"HPCLAUNCH_STORE": "10.0.0.1:4000"} if launched else {}
    plain = python("-c", show, cwd=tmp_path, env=environment(users))
    hooked = python("-c", show, cwd=tmp_path, env=environment(HOOKS, users, **names))
    assert hooked.stdout == plain.stdout
    assert hooked.stderr == plain.stderr
    assert hooked.returncode == plain.returncode == 0


COUNT = "import sys; print(sum('hpclaunch' in type(f).__module__ for f in sys.meta_path))"


@pytest.mark.parametrize(
    "command",
    [
        '"$0" train.py',
        '"$0" -u -m train',
        'exec bash -c \'exec "$0" train.py\' "$0"',
        '"$0" -c "import subprocess, sys; subprocess.run([sys.executable, \'train.py\'])"',
    ],
)
def test_every_python_below_a_worker_has_the_hooks_and_no_other(tmp_path, command):
    (tmp_path / "train.py").write_text(COUNT)
    for names, expected in (({"HPCLAUNCH_STORE": "10.0.0.1:4000"}, "1\n"), ({}, "0\n")):
        env = environment(HOOKS, **names)
        run = ["bash", "-c", command, sys.executable]
        found = subprocess.run(run, cwd=tmp_path, env=env, capture_output=True, text=True)
        assert (found.stdout, found.stderr) == (expected, "")


OLD_LOADER = """
import sys, types
from importlib.machinery import ModuleSpec

class Old:
    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, self) if name == "torch.serialization" else None

    def load_module(self, name):
        return sys.modules.setdefault(name, types.ModuleType(name))

sys.meta_path.append(Old())
import warnings; warnings.simplefilter("ignore")
import torch.cuda.graphs, torch.serialization
print(list(torch.cuda.graphs.__path__))
"""


def test_a_loader_that_cannot_be_patched_loads_its_module(tmp_path):
    """A package without a file has none, and old ones have no `exec_module`."""
    (tmp_path / "torch" / "cuda" / "graphs").mkdir(parents=True)
    (tmp_path / "torch" / "__init__.py").touch()
    env = environment(HOOKS, tmp_path, HPCLAUNCH_STORE="10.0.0.1:4000")
    found = python("-c", OLD_LOADER, cwd=tmp_path, env=env)
    assert (found.stdout, found.stderr) == (f"['{tmp_path}/torch/cuda/graphs']\n", "")


def test_a_torch_without_these_names_stays_as_it_is(tmp_path):
    names = ("distributed/rendezvous", "distributed/distributed_c10d", "optim/optimizer")
    for name in (*names, "amp/grad_scaler", "cuda/graphs", "serialization"):
        file = tmp_path / "torch" / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        (file.parent / "__init__.py").touch()
        file.write_text("_rendezvous_handlers = {}")
    (tmp_path / "torch" / "__init__.py").touch()
    show = "from torch.distributed import rendezvous as r; print(r._rendezvous_handlers); "
    show += "import torch.optim.optimizer, torch.amp.grad_scaler, torch.cuda.graphs, "
    show += "torch.serialization, torch.distributed.distributed_c10d\n"
    env = environment(HOOKS, tmp_path, HPCLAUNCH_STORE="10.0.0.1:4000")
    found = python("-c", show + AWAITS_NOTHING_ELSE, cwd=tmp_path, env=env)
    assert (found.stdout, found.stderr) == ("{}\n", "")
