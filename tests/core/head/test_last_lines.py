"""The meaning of workers' last lines: really written here if a CPU is enough, else quoted."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys

import pytest

from hpclaunch.core.head import last_lines
from hpclaunch.core.protocol.model import Failure
from surroundings import free_ports

# One import of torch, then a forked process for each rank of each case, which ends as workers do.
LAST_WORDS = """
import atexit, os, signal, socket, sys, time
from datetime import timedelta
from pathlib import Path

at_the_very_end = []  # after all that torch does when the interpreter ends
atexit.register(lambda: [f() for f in at_the_very_end])
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

def init(backend="gloo", seconds=60.0, **more):
    dist.init_process_group(backend, timeout=timedelta(seconds=seconds), **more)

def mpi(rank): init("mpi")
def nccl(rank): init("nccl")
def cuda(rank): torch.zeros(1).cuda()
def set_device(rank): torch.cuda.set_device(0)
def no_rank(rank): init(init_method="tcp://127.0.0.1:1")
def no_world_size(rank): init(init_method="tcp://127.0.0.1:1", rank=0)
def no_environment(rank):
    del os.environ["RANK"]
    init()

def port_of_the_script(rank):
    taken = socket.create_server(("127.0.0.1", 0))
    init(init_method=f"tcp://127.0.0.1:{taken.getsockname()[1]}", rank=0, world_size=1)

def server_of_the_script(rank):
    taken = socket.create_server(("127.0.0.1", 0))
    socket.create_server(taken.getsockname())

def nobody_comes(rank):
    os.environ["WORLD_SIZE"] = "2"
    init(seconds=1)

def nobody_is_there(rank):
    os.environ["RANK"], os.environ["WORLD_SIZE"] = "1", "2"
    init(seconds=1)

def never_told(rank):
    store = dist.TCPStore("127.0.0.1", 0, is_master=True)
    store.wait(["news"], timedelta(milliseconds=100))

def no_interface(rank):
    os.environ["GLOO_SOCKET_IFNAME"] = "nope0"
    init()

def full_disk(rank):
    torch.save(torch.zeros(1 << 18), "/dev/full")

class Data(Dataset):
    def __len__(self): return 4
    def __getitem__(self, index): return self.item()

class Deadly(Data):
    def item(self): os.kill(os.getpid(), signal.SIGKILL)

class Big(Data):
    def item(self): return torch.zeros(1 << 20)

def loader_killed(rank):
    for _ in DataLoader(Deadly(), num_workers=1): pass

def shared_memory(rank):
    for _ in DataLoader(Big(), num_workers=1): pass

def peer_gone(rank):
    init()
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    if rank == 1: os._exit(3)
    dist.all_reduce(tensor)

def peer_late(rank):
    init()
    tensor = torch.ones(1)
    dist.all_reduce(tensor)  # both are there, however long that has taken
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=1))
    if rank == 1: time.sleep(3)
    dist.all_reduce(tensor)

def unlike(rank):
    init()
    dist.all_reduce(torch.ones(4 if rank else 8))

def too_early(rank):
    init()
    ended = Path("ended")
    if rank == 1:
        while not ended.exists(): time.sleep(0.1)
        time.sleep(3)  # so that the interpreter of the other has ended, too
    work = dist.all_reduce(torch.ones(1), async_op=True)
    if rank == 1: return work.wait()
    work.get_future().then(lambda f: None)
    at_the_very_end.append(ended.touch)

PAIRS = (peer_gone, peer_late, unlike, too_early)

def start(case, rank, size, port):
    pid = os.fork()
    if pid: return pid
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.dup2(os.open(f"{case}.{rank}", os.O_WRONLY | os.O_CREAT, 0o600), 2)
    try:
        globals()[case](rank)
    except Exception:
        sys.excepthook(*sys.exc_info())
        os._exit(1)  # the rest of the interpreter's end takes a second
    sys.exit()

running = []
for word in sys.argv[1:]:
    case, port = word.split(":")
    size = 2 if globals()[case] in PAIRS else 1
    running += [(case, rank, start(case, rank, size, port)) for rank in range(size)]
for case, rank, pid in running:
    print(case, rank, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""

HAS_TORCH = importlib.util.find_spec("torch") is not None


def failure(tail: str, code: int = 1) -> Failure:
    """`code` is negative for a signal, as subprocess has it."""
    signum = max(0, -code)
    return Failure(0, 0, "n1", code if code > 0 else 128 + signum, signum, 0.0, tail)


def cut(text: str) -> str:
    """Return the last lines as `system.logs.tail` cuts them."""
    return "\n".join(text[-4096:].strip("\n").splitlines()[-12:])


CASES = {
    "mpi": 'init_process_group("nccl") for GPUs or init_process_group("gloo")',
    "no_rank": "leave init_method",
    "no_world_size": "leave init_method",
    "no_environment": "--cleanenv",
    "port_of_the_script": 'init_method="env://"',
    "server_of_the_script": "bind to port 0",
    "nobody_comes": "init_process_group(timeout=",
    "nobody_is_there": "Do not set MASTER_ADDR",
    "never_told": "init_process_group(timeout=",
    "no_interface": "GLOO_SOCKET_IFNAME",
    "full_disk": "df -h",
    "loader_killed": "#SBATCH --mem",
    "peer_gone": "last lines of the other ranks",
    "peer_late": "last lines of every rank",
    "unlike": "if rank == 0",
    "too_early": "destroy_process_group()",
}
WITHOUT_CUDA = {
    "nccl": "a build for CPUs only",
    "cuda": "a build for CPUs only",
    "set_device": "a build for CPUs only",
}


def said_by(cases, directory, before=()):
    """(exit code, last lines) of rank 0 of each case, or of the rank that died by a signal."""
    ports = free_ports(len(cases))
    words = [f"{case}:{port}" for case, port in zip(cases, ports, strict=True)]
    command = [*before, sys.executable, "-c", LAST_WORDS, *words]
    done = subprocess.run(command, cwd=directory, stdout=subprocess.PIPE, text=True, timeout=280)
    assert done.returncode == 0, done.stdout
    outcome: dict[str, tuple[int, str]] = {}
    for line in done.stdout.splitlines():
        case, rank, code = line.split()
        if case not in outcome or int(code) < 0:
            outcome[case] = int(code), cut((directory / f"{case}.{rank}").read_text())
    return outcome


@pytest.fixture(scope="module")
def real(starts, tmp_path_factory):
    pytest.importorskip("torch.version")
    from torch.version import cuda

    cases = CASES if cuda else CASES | WITHOUT_CUDA
    return said_by(cases, tmp_path_factory.mktemp("words"))


@pytest.mark.parametrize(("case", "hint"), list((CASES | WITHOUT_CUDA).items()))
def test_what_torch_writes(real, case, hint):
    if case not in real:
        pytest.skip("this torch has CUDA")
    code, tail = real[case]
    assert code != 0, "the case did not fail"
    assert hint in last_lines.advise(failure(tail, code)), tail


@pytest.mark.starts
@pytest.mark.skipif(not HAS_TORCH or os.geteuid() != 0, reason="needs torch, and root to mount")
def test_a_full_dev_shm(tmp_path):
    mount = "mount -t tmpfs -o size=1m tmpfs /dev/shm"
    before = ("unshare", "--mount", "sh", "-c", f'{mount} || exit; exec "$@"', "sh")
    try:
        outcome = said_by(["shared_memory"], tmp_path, before)
    except AssertionError as e:
        pytest.skip(f"no mounts here: {e}")
    code, tail = outcome["shared_memory"]
    assert "--shm-size" in last_lines.advise(failure(tail, code)), tail


@pytest.mark.starts
@pytest.mark.parametrize(
    ("program", "hint"),
    [
        ("import no_such_module", "PYTHON_EXEC"),
        ("import os; os.environ['SLURM_CPUS_PER_TASK']", "--cpus-per-task"),
        (
            "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (8, 8))\n"
            "[open('/dev/null') for _ in range(9)]",
            "ulimit -n",
        ),
        ("import os; os.write(os.open('/dev/full', os.O_WRONLY), b'x')", "df -h"),
        ("bytearray(1 << 62)", "#SBATCH --mem"),
        ("import ctypes; ctypes.CDLL('libnope.so')", "module load"),
    ],
)
def test_what_python_writes(program, hint):
    env = {k: v for k, v in os.environ.items() if not k.startswith("SLURM")}
    done = subprocess.run([sys.executable, "-c", program], env=env, stderr=subprocess.PIPE)
    tail = cut(done.stderr.decode())
    assert hint in last_lines.advise(failure(tail, done.returncode)), tail


NCCL_ERROR = (
    "[rank{}]: torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/"
    "c10d/NCCLUtils.cpp:77, {}, NCCL version 2.26.2\n"
)


@pytest.mark.parametrize(
    ("tail", "hint"),
    [
        (
            "ValueError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!",
            "--gpus-per-node",
        ),
        ("RuntimeError: No CUDA GPUs are available", "CUDA_VISIBLE_DEVICES is empty"),
        (
            "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an "
            "NVIDIA GPU",
            "--nv",
        ),
        (
            NCCL_ERROR.format(1, "invalid usage (run with NCCL_DEBUG=WARN for details)")
            + "[rank1]: ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\n"
            "[rank1]: Last error:\n"
            "[rank1]: Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 3000",
            'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))',
        ),
        (
            "[rank1]: Last error:\n[rank1]: Multiple Ranks are using the same GPU/Partition. Set "
            "NCCL_MULTI_RANK_GPU_ENABLE=1 to enable this configuration.",
            "--shared-backend gloo",
        ),
        (
            "torch.AcceleratorError: CUDA error: the hardware resources required to create MPS "
            "client have been exhausted",
            "each process of its own that uses CUDA",
        ),
        (
            "torch.AcceleratorError: CUDA error: the hardware resources required to support device "
            "connections have been exhausted",
            "Fewer fit if CUDA_DEVICE_MAX_CONNECTIONS is above 2",
        ),
        (
            "torch.AcceleratorError: CUDA error: invalid device ordinal\n"
            "GPU device may be out of range, do you have enough GPUs?\n"
            "CUDA kernel errors might be asynchronously reported at some other API call, so the "
            "stacktrace below might be incorrect.",
            "--gpus-per-task",
        ),
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 298.00 MiB. GPU 0 has a "
            "total capacity of 44.39 GiB of which 12.06 MiB is free. Process 6324 has 8.06 GiB "
            "memory in use. Including non-PyTorch memory, this process has 36.3 GiB memory in use.",
            "several workers share this GPU",
        ),
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.16 GiB. GPU 0 has a "
            "total capacity of 31.36 GiB of which 471.69 MiB is free. Including non-PyTorch "
            "memory, this process has 30.9 GiB memory in use.",
            "batch size per worker",
        ),
        (
            "[rank0]:[E626 06:24:44.903 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught "
            "collective operation timeout: WorkNCCL(SeqNum=8, OpType=ALLREDUCE, NumelIn=1, "
            "NumelOut=1, Timeout(ms)=600000) ran for 600020 milliseconds before timing out.",
            "TORCH_DISTRIBUTED_DEBUG=DETAIL",
        ),
        (
            "frame #1: c10d::ProcessGroupNCCL::WorkNCCL::checkTimeout(std::optional<std::chrono::"
            "duration<long, std::ratio<1l, 1000l> > >) + 0x1d2 (0x1554e9e0f8f2 in libtorch_cuda.so)"
            "\nframe #2: c10d::ProcessGroupNCCL::watchdogHandler() + 0x233 (0x1554e9e16333)",
            "last lines of every rank",
        ),
        (
            NCCL_ERROR.format(0, "remote process exited or there was a network error")
            + "[rank0]: ncclRemoteError: A call failed possibly due to a network error or a remote "
            "process exiting prematurely.",
            "the cause is there",
        ),
        ("[rank0]: Last error:\n[rank0]: Bootstrap : no socket interface found", "ip -br addr"),
        (
            "RuntimeError: DataLoader worker (pid 11011) is killed by signal: Bus error. It is "
            "possible that dataloader's workers are out of shared memory. Please try to raise your "
            "shared memory limit.",
            "--shm-size",
        ),
        ("_pickle.UnpicklingError: Weights only load failed. This file ...", "weights_only=False"),
        ("ImportError: /lib/libstdc++.so.6: version `GLIBCXX_3.4.29' not found", "module load"),
    ],
)
def test_what_needs_a_gpu_is_quoted(tail, hint):
    assert hint in last_lines.advise(failure(tail))


@pytest.mark.parametrize(
    ("signum", "hint"),
    [
        (signal.SIGKILL, "OUT_OF_MEMORY"),
        (signal.SIGBUS, "/dev/shm"),
        (signal.SIGSEGV, "PYTHONFAULTHANDLER=1"),
        (signal.SIGILL, "--constraint"),
    ],
)
def test_a_death_by_signal(signum, hint):
    assert hint in last_lines.advise(failure("", -signum))
    assert hint in last_lines.advise(failure("epoch 1\nConnection reset by peer, again", -signum))


@pytest.mark.parametrize(
    ("tail", "code"), [("", 1), ("ValueError: x", 1), ("loss is nan", 3), ("", -signal.SIGTERM)]
)
def test_nothing_is_said_about_what_is_not_known(tail, code):
    assert last_lines.advise(failure(tail, code)) == ""


def test_every_advice_is_a_short_paragraph():
    by_words = [meaning.advice for meaning in last_lines.MEANINGS if meaning.advice]
    for text in [*by_words, *last_lines.SIGNALS.values()]:
        assert len(text) < 450
        assert text.endswith(".")
        assert "  " not in text


@pytest.mark.parametrize(
    ("last_line", "expected"),
    [
        ("train.py: error: unrecognized arguments: --lrr", None),
        ("OSError: [Errno 5] Input/output error: '/data/shard-3'", True),
        ("RuntimeError: Connection reset by peer", True),
        ("OSError: libcudart.so.12: cannot open shared object file: No such file or ...", False),
        ("OSError: Could not load this library: /x/libtorchaudio.so", False),
        ("ModuleNotFoundError: No module named 'x'", False),
        ("/env/bin/python3: No module named train", False),
        ("/env/bin/python3: Error while finding module specification for 'x.y' (...)", False),
        ("ValueError: a bad batch", None),
        ("", None),
    ],
)
def test_whether_it_may_pass(last_line, expected):
    assert last_lines.may_pass(last_line, 1) is expected


@pytest.mark.parametrize(
    ("last_line", "expected"),
    [
        ("train.py: error: unrecognized arguments: --lrr", False),
        ("RuntimeError: Connection reset by peer", True),
        ("ValueError: a bad batch", None),
    ],
)
def test_whether_it_may_pass_with_the_exit_code_of_wrong_usage(last_line, expected):
    assert last_lines.may_pass(last_line, 2) is expected
