"""The worker that is measured: tells the benchmark when it had come how far, then costs nothing.

One message over the benchmark's Unix socket, which BENCH_SOCKET names, once all ranks have met:
rank, restarts, and the moments of `measuring.MARKS`. They are of CLOCK_MONOTONIC, which all
processes of a machine share. Then it sleeps until the benchmark closes the connection, or something
kills it.
"""

from time import monotonic

began = monotonic()

import os  # noqa: E402
import socket  # noqa: E402

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

imported = monotonic()
dist.init_process_group("gloo")
initialised = monotonic()
dist.all_reduce(torch.ones(1))
met = monotonic()

who = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as benchmark:
    benchmark.connect(os.environ["BENCH_SOCKET"])
    benchmark.send(" ".join(map(str, (*who, began, imported, initialised, met))).encode())
    benchmark.recv(1)
dist.destroy_process_group()
