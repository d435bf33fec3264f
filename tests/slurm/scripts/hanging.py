"""Trains a little, and hangs in each round as HANGS says: "KIND:RANK:STEP KIND:RANK:STEP ...", one
for each round; in the round after the last it goes on to the end. The rank at fault tells which
line it is in: "hangs in line N", 0 for none.

For "storage", STALLING is a directory with a file system of `stalling.py` for each host. For "cut",
the hosts are network namespaces, and the script runs as root.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

STEPS = 30
PAUSE = 0.05  # seconds for a step
HERE = os.path.basename(__file__)


class Samples(Dataset):
    """Some samples take for ever."""

    def __init__(self, stops_at=-1):
        self.stops_at = stops_at

    def __len__(self):
        return 4 * STEPS

    def __getitem__(self, index):
        if index == self.stops_at:
            time.sleep(0.5)  # what it has loaded before is on its way
            os.kill(os.getpid(), signal.SIGSTOP)
        return torch.full((4,), float(index))


def tell(line=None):
    line = sys._getframe(1).f_lineno + 1 if line is None else line
    sys.stdout.write(f"hangs in line {line}\n")
    sys.stdout.flush()


def stopped():
    tell(0)
    os.kill(os.getpid(), signal.SIGSTOP)


def asleep():
    tell()
    time.sleep(1000)


def skipped():
    """The others reduce; this rank goes on to the next collective."""
    tell()
    dist.all_gather([torch.zeros(2) for _ in range(dist.get_world_size())], torch.ones(2))
    time.sleep(1000)


def locked():
    lock = threading.Lock()
    lock.acquire()
    tell()
    lock.acquire()


def holding():
    """Python's lock, in native code that no signal interrupts."""
    native, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
    native.pthread_mutex_lock(mutex)
    tell()
    native.pthread_mutex_lock(mutex)


def endless():
    tell()
    while True:
        pass


def reading():
    """What never comes, as from a file system that has stalled."""
    read, _write = os.pipe()
    tell()
    os.read(read, 1)


def barrier():
    """The others wait for a rank that does something else first."""
    tell()
    threading.Event().wait()


def storage():
    """A file system that has stalled: nothing that reads from there can be interrupted."""
    mounted = os.path.join(os.environ["STALLING"], os.uname().nodename)
    with open(f"{mounted}/data", "wb") as f:
        f.write(bytes(100))
    file = os.open(f"{mounted}/data", os.O_RDONLY)
    with open(f"{mounted}.stalls", "w") as f:
        f.write("access getattr open write flush")
    tell()
    os.read(file, 100)


def cut():
    """Nothing that this worker sends to other hosts arrives any more; what they send does."""
    import psutil

    ways = [
        f"{c.raddr.ip.removeprefix('::ffff:')} . {c.laddr.port} . {c.raddr.port}"
        for c in psutil.Process().net_connections("tcp")
        if c.raddr and c.laddr.ip != c.raddr.ip and c.raddr.port != int(os.environ["MASTER_PORT"])
    ]
    lost = f"ip daddr . tcp sport . tcp dport {{ {', '.join(ways)} }} drop"
    table = f"table inet cut-{os.getpid()}"
    hook = "type filter hook output priority 0"
    subprocess.run(["nft", f"{table} {{ chain out {{ {hook}; {lost}; }}; }}"], check=True)
    tell(0)


def left():
    """The process ends; one that it has started keeps its connections open."""
    tell(0)
    if os.fork():
        os._exit(0)
    time.sleep(1000)


def swapped(mine):
    """All ranks are here: two collectives, and one rank calls the second one first."""
    world = dist.get_world_size()
    if mine:
        tell()
        dist.all_gather([torch.zeros(2) for _ in range(world)], torch.ones(2))
    dist.all_reduce(torch.ones(2))
    dist.all_gather([torch.zeros(2) for _ in range(world)], torch.ones(2))


def unsent(mine):
    """A message goes round, and one rank does not pass it on."""
    rank, world, message = dist.get_rank(), dist.get_world_size(), torch.ones(2)
    if rank > 0:
        dist.recv(message, rank - 1)
    if mine:
        asleep()
    dist.send(message, (rank + 1) % world)
    if rank == 0:
        dist.recv(message, world - 1)


def pipeline(mine):
    """A stage that never comes to an end."""
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    class Layer(torch.nn.Linear):
        def forward(self, x):
            if mine:
                asleep()
            return super().forward(x)

    rank, world = dist.get_rank(), dist.get_world_size()
    stage = PipelineStage(Layer(4, 4), rank, world, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, 2)
    schedule.step(*([torch.ones(4, 4)] if rank == 0 else []))


OF_ONE = {
    **{f.__name__: f for f in (stopped, asleep, skipped, locked, holding, endless, reading)},
    **{f.__name__: f for f in (barrier, storage, cut, left)},
}
OF_ALL = {f.__name__: f for f in (swapped, unsent, pipeline)}


def hang_of_this_round():
    hangs = os.environ.get("HANGS", "").split()
    number = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    if number >= len(hangs):
        return "", -1, -1
    kind, rank, step = hangs[number].split(":")
    return kind, int(rank), int(step)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    kind, culprit, at = hang_of_this_round()
    mine = rank == culprit
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    stops_at = 4 * at if kind == "loader" and mine else -1
    samples = Samples(stops_at)
    workers = 1 if kind == "loader" else 0
    batches = iter(DataLoader(samples, batch_size=4, num_workers=workers))
    for step in range(STEPS):
        if step == at - 2 and stops_at >= 0:  # the batches before are lost with the process
            tell()
        batch = next(batches)
        if step == at and mine and kind in OF_ONE:
            OF_ONE[kind]()
        if step == at and kind in OF_ALL:
            OF_ALL[kind](mine)
        if step == at and kind in ("barrier", "left"):
            dist.barrier()
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
        time.sleep(PAUSE)
    if kind == "end" and mine:
        tell()
        time.sleep(1000)
    dist.destroy_process_group()
    sys.stdout.write(f"rank {rank} is done\n")


main()
