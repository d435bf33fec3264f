"""Worker of the benchmarks: report when each stage of the start was reached, then sleep.

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

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

imported = monotonic()
dist.init_process_group("gloo")
initialised = monotonic()
dist.all_reduce(torch.ones(1))
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
