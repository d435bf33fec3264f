"""The responder reads torch's flight recorders, in real process groups."""

import json

import pytest

from torch_version import TORCH

pytestmark = [pytest.mark.starts, pytest.mark.torch]

MEETS = """
import sys
import torch, torch.distributed as dist
from torch._C import _distributed_c10d as c10d

class Own(c10d.Backend):
    def getBackendName(self):
        return "own"

    def allreduce(self, tensors, options=None):
        future = torch.futures.Future()
        future.set_result(tensors)
        return c10d._create_work_from_future(future)

def make(store, rank, size, timeout):
    return Own(rank, size)

dist.Backend.register_backend("own", make, devices=["cpu"])
dist.init_process_group(sys.argv[1], store=dist.HashStore(), rank=0, world_size=1)
for backend in sys.argv[2:]:
    dist.all_reduce(torch.ones(1), group=dist.new_group([0], backend=backend))
from _hpclaunch_hooks import beside
print(beside("_hpclaunch_responder").recorded().decode().strip())
"""


def run(forks, text):
    """Return what a process with this text has written, as JSON."""
    env = {"TORCH_FR_BUFFER_SIZE": "100", "TORCH_NCCL_TRACE_BUFFER_SIZE": "100"}
    process = forks.start(text, env=env)
    out, err = process.communicate()
    assert process.returncode == 0, err
    return json.loads(out)


def names(forks, *words):
    """Return the names of the recorded collectives."""
    said = run(forks, f"import sys\nsys.argv[1:] = {words!r}\n{MEETS}")
    return [entry["profiling_name"] for entry in said["entries"]]


ASKS = """
import json, sys
import torch, torch.distributed as dist
import torch.testing._internal.distributed.fake_pg
from torch._C import _distributed_c10d as c10d

dist.init_process_group("cpu:gloo,cuda:fake", store=dist.HashStore(), rank=0, world_size=1)
dist.all_reduce(torch.ones(1))
from _hpclaunch_hooks import beside, progress
responder = beside("_hpclaunch_responder")

asked = []
for name in ("_dump_fr_trace_json", "_dump_nccl_trace_json"):
    real = getattr(c10d, name, lambda *_: "{}")

    def dump(*words, name=name, real=real, **more):
        asked.append([name, more.get("backend", "")])
        return real(*words, **more)

    setattr(c10d, name, dump)
progress.entered.extend([(1, 100), (2, 200), (3, 300)])
sample, for_a_sample = json.loads(responder.arrived(100)), asked.copy()
asked.clear()
responder.recorded()
print(json.dumps([sample, for_a_sample, asked]))
"""


def needs_torch(*least):
    return pytest.mark.skipif(
        least > TORCH,
        reason="this torch records other backends not at all, or in the same recorder",
    )


@needs_torch(2, 8)
def test_the_recorder_of_collectives_on_gpus_is_asked_only_for_a_hang(forks):
    """Instead of its collectives, a sample has the time at which each step began."""
    sample, for_a_sample, for_a_hang = run(forks, ASKS)
    assert sample["steps"] == {"2": 200, "3": 300}
    assert {group: list(times) for group, times in sample["arrivals"].items()} == {"gloo:0": ["1"]}
    assert not sample["blind"]
    assert for_a_sample == [["_dump_fr_trace_json", ""]]
    assert ["_dump_fr_trace_json", "fake"] in for_a_hang
    assert ["_dump_nccl_trace_json", ""] in for_a_hang


@needs_torch(2, 8)
def test_a_collective_over_gloo(forks):
    assert names(forks, "gloo", "gloo") == ["gloo:all_reduce"]


@needs_torch(2, 15)
def test_each_backend_has_a_recorder_of_its_own(forks):
    """So has "nccl"."""
    assert names(forks, "gloo", "own", "gloo") == ["own:all_reduce", "gloo:all_reduce"]
