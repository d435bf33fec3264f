"""Train for some steps, with a hang in each round: HANGS="KIND:RANK:STEP KIND:RANK:STEP ..."

After the last hang, it trains to the end. The rank at fault prints its line, "hangs in line N", or
0 if no line is at fault.

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
    """Samples, of which one stops its process."""

    def __init__(self, stops_at=-1):
        self.stops_at = stops_at

    def __len__(self):
        return 4 * STEPS

    def __getitem__(self, index):
        if index == self.stops_at:
            time.sleep(0.5)  # until earlier samples have arrived
            os.kill(os.getpid(), signal.SIGSTOP)
        return torch.full((4,), float(index))


def print_line(line=None):
    """Print the line after the caller's, or the given one."""
    line = sys._getframe(1).f_lineno + 1 if line is None else line
    sys.stdout.write(f"hangs in line {line}\n")
    sys.stdout.flush()


def stopped():
    print_line(0)
    os.kill(os.getpid(), signal.SIGSTOP)


def asleep():
    print_line()
    time.sleep(1000)


def skipped():
    """Skip a collective: this rank calls the next one."""
    print_line()
    dist.all_gather([torch.zeros(2) for _ in range(dist.get_world_size())], torch.ones(2))
    time.sleep(1000)


def locked():
    lock = threading.Lock()
    lock.acquire()
    print_line()
    lock.acquire()


def holding():
    """Wait with the GIL held, in native code that no signal interrupts."""
    native, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
    native.pthread_mutex_lock(mutex)
    print_line()
    native.pthread_mutex_lock(mutex)


def endless():
    print_line()
    while True:
        pass


def reading():
    """Read from a pipe to which nobody writes, which looks like a stalled file system."""
    read, _write = os.pipe()
    print_line()
    os.read(read, 1)


def barrier():
    """Wait for something else while the other ranks wait at a barrier."""
    print_line()
    threading.Event().wait()


def storage():
    """Read from a stalled file system, which cannot be interrupted."""
    mounted = os.path.join(os.environ["STALLING"], os.uname().nodename)
    with open(f"{mounted}/data", "wb") as f:
        f.write(bytes(100))
    file = os.open(f"{mounted}/data", os.O_RDONLY)
    with open(f"{mounted}.stalls", "w") as f:
        f.write("access getattr open write flush")
    print_line()
    os.read(file, 100)


def cut():
    """Drop everything that this worker sends to other hosts, but not what they send."""
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
    print_line(0)


def left():
    """End this process while its child keeps the connections open."""
    print_line(0)
    if os.fork():
        os._exit(0)
    time.sleep(1000)


def swapped(mine):
    """Call two collectives, on all ranks; on one rank, the second one first."""
    world = dist.get_world_size()
    if mine:
        print_line()
        dist.all_gather([torch.zeros(2) for _ in range(world)], torch.ones(2))
    dist.all_reduce(torch.ones(2))
    dist.all_gather([torch.zeros(2) for _ in range(world)], torch.ones(2))


def unsent(mine):
    """Pass a message around, on all ranks; one rank does not pass it on."""
    rank, world, message = dist.get_rank(), dist.get_world_size(), torch.ones(2)
    if rank > 0:
        dist.recv(message, rank - 1)
    if mine:
        asleep()
    dist.send(message, (rank + 1) % world)
    if rank == 0:
        dist.recv(message, world - 1)


def pipeline(mine):
    """Run a pipeline, on all ranks; one stage never ends."""
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
        if step == at - 2 and stops_at >= 0:  # prefetched batches are lost
            print_line()
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
        print_line()
        time.sleep(1000)
    dist.destroy_process_group()
    sys.stdout.write(f"rank {rank} is done\n")


if __name__ == "__main__":  # multiprocessing imports this file, too, from Python 3.14 on
    main()
