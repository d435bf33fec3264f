"""Worker of the benchmarks: report when each stage of the start was reached, then sleep. [cuda]

With "cuda", the first all-reduce is of a tensor on the first GPU that each worker sees, if any.

After the first all-reduce, it sends one message to the benchmark's Unix socket BENCH_SOCKET: a JSON
list of rank, restarts, and a dictionary of the times of the stages, in order. They are times of
CLOCK_MONOTONIC, which all processes of a machine share. Then it sleeps until the benchmark closes
the connection, or something kills it.
"""

from time import monotonic

began = monotonic()

import json  # noqa: E402
import os  # noqa: E402
import socket  # noqa: E402
import sys  # noqa: E402

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

imported = monotonic()
dist.init_process_group("gloo")
initialised = monotonic()
first = torch.ones(1, device="cuda" if sys.argv[1:] and torch.cuda.is_available() else "cpu")
dist.all_reduce(first)
assert first.item() == dist.get_world_size()
ready = monotonic()

marks = {
    "script begins": began,
    "torch imported": imported,
    "process group ready": initialised,
    "first all-reduce done": ready,
}
who = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as benchmark:
    benchmark.connect(os.environ["BENCH_SOCKET"])
    benchmark.send(json.dumps([*who, marks]).encode())
    benchmark.recv(1)
dist.destroy_process_group()
