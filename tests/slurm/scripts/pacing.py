"""Train for SECONDS, or until the file UNTIL exists, with steps of 0.1 s. SLOW=KIND:WHO:FACTOR
slows down a rank, or the ranks of a node, by this factor:

loader   its batches are late
compute  it has more to compute
quota    the CPU quota of its cgroup is used up in each period (as root, with cgroups v1)
stolen   it is bound to a CPU that another process uses too
storage  it waits in the kernel, as for a disk

With WORK=compute, all ranks use the CPU in their steps; otherwise they sleep. Rank 0 saves a
checkpoint every second in the directory SAVES.
"""

import atexit
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEP = 0.1  # seconds
QUOTAS = Path("/sys/fs/cgroup/cpu")
PERIOD = 50_000  # microseconds of a quota's period


def computes(seconds):
    """Compute for so many seconds of CPU time."""
    begun = time.thread_time()
    while time.thread_time() - begun < seconds:
        torch.randn(64, 64) @ torch.randn(64, 64)


class Storage:
    """A wait in the kernel, as in an fsync() on a slow disk.

    The parent of a vfork() waits in the kernel until its child runs, and the child here runs only
    when another process has opened a FIFO.
    """

    def __init__(self):
        self.fifo = os.path.join(tempfile.mkdtemp(), "fifo")
        os.mkfifo(self.fifo)
        program = f"while read seconds; do sleep $seconds; : > {self.fifo}; done"
        self.other = subprocess.Popen(["sh", "-c", program], stdin=subprocess.PIPE, text=True)

    def wait(self, seconds):
        print(seconds, file=self.other.stdin, flush=True)
        opened = (os.POSIX_SPAWN_OPEN, 0, self.fifo, os.O_RDONLY, 0)
        child = os.posix_spawn("/bin/true", ["true"], os.environ, file_actions=[opened])
        os.waitpid(child, 0)


def limit_cpu(factor):
    group = QUOTAS / f"pacing-{os.getpid()}"
    group.mkdir()
    (group / "cpu.cfs_period_us").write_text(str(PERIOD))
    (group / "cpu.cfs_quota_us").write_text(str(int(PERIOD / factor)))
    (group / "cgroup.procs").write_text(str(os.getpid()))

    def leave():
        (QUOTAS / "cgroup.procs").write_text(str(os.getpid()))
        group.rmdir()

    atexit.register(leave)


def steal_cpu(factor):
    """Start a process that takes a part of this one's CPU time."""
    cpu = sorted(os.sched_getaffinity(0))[0]
    os.sched_setaffinity(0, {cpu})
    part = factor - 1  # of a step, after each step's time
    program = (
        "import time\n"
        "while True:\n"
        f"    end = time.thread_time() + {part * STEP}\n"
        "    while time.thread_time() < end: pass\n"
        f"    time.sleep({STEP})\n"
    )
    thief = subprocess.Popen([sys.executable, "-c", program])
    atexit.register(thief.kill)


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    kind, at, factor = os.environ.get("SLOW", "::1").split(":")
    here = at in (str(rank), os.environ.get("SLURMD_NODENAME"))
    kind, more = (kind, float(factor) - 1) if here else ("", 0.0)
    work = computes if os.environ.get("WORK") == "compute" else time.sleep
    saves, saved_at = os.environ.get("SAVES"), time.monotonic()
    if saves:
        os.makedirs(saves, exist_ok=True)
    storage = Storage() if kind == "storage" else None
    if kind == "quota":
        limit_cpu(1 + more)
    elif kind == "stolen":
        steal_cpu(1 + more)
    layers = [torch.nn.Linear(64, 64) for _ in range(4)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.02)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    end = time.monotonic() + float(os.environ.get("SECONDS", "40"))
    over, steps = torch.zeros(1), 0
    dist.barrier()
    sys.stdout.write(f"rank {rank} trains\n")
    sys.stdout.flush()
    while not over:
        if kind == "loader":
            time.sleep(more * STEP)
        elif kind == "compute":
            computes(more * STEP)
        elif storage is not None:
            storage.wait(more * STEP)
        work(STEP)
        model(torch.randn(8, 64)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        steps += 1
        over.fill_(time.monotonic() > end or os.path.exists(os.environ.get("UNTIL", "")))
        dist.all_reduce(over)
        if saves and rank == 0 and time.monotonic() > saved_at + 1:
            torch.save({"step": steps}, f"{saves}/step-{steps}.tmp")
            os.replace(f"{saves}/step-{steps}.tmp", f"{saves}/step-{steps}.pt")
            saved_at = time.monotonic()
    if rank == 0:
        sys.stdout.write(f"{steps} steps\n")


main()
