"""`bench/worker.py` with CUDA: the first all-reduce is of a tensor on the GPU.

Every worker uses the first GPU that it sees.
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
first = torch.ones(1, device="cuda" if torch.cuda.is_available() else "cpu")
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
