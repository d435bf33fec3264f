"""The worker that is measured: tells the benchmark when it had come how far, then costs nothing.

One message over the benchmark's Unix socket, which BENCH_SOCKET names, once all ranks have met:
a JSON list of rank, restarts, and a dictionary of these moments by name, in order. They are of
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
met = monotonic()

marks = {
    "script begins": began,
    "torch is imported": imported,
    "process group is there": initialised,
    "first all-reduce done": met,
}
who = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as benchmark:
    benchmark.connect(os.environ["BENCH_SOCKET"])
    benchmark.send(json.dumps([*who, marks]).encode())
    benchmark.recv(1)
dist.destroy_process_group()
