"""The backend on a shared GPU: real ranks with gloo, and a stand-in for the version of NCCL.

The ranks are forked from a process that has imported torch, as in a warm start: the
launcher sets a worker's environment after the hooks are in torch.
"""

from __future__ import annotations

import json

import pytest
from test_hooks import HOOKS, LIMIT, environment, python, worker_environment
from test_hooks import store as store  # a fixture

pytestmark = [pytest.mark.starts, pytest.mark.torch]

RANKS = """
import inspect, json, os, sys
from datetime import timedelta
import torch
import torch.distributed as dist

SOON = timedelta(seconds=200)

def meet(name):
    # No group was made in this store: gloo would find the last one's addresses.
    store, rank, world = next(dist.rendezvous("env://", timeout=SOON))
    return {"store": dist.PrefixStore(name, store), "rank": rank, "world_size": world}

def forked(run, world=2, **env):
    pids = []
    for rank in range(world):
        pid = os.fork()
        if not pid:
            changes = {"RANK": rank, "WORLD_SIZE": world, "HPCLAUNCH_LOCAL_RANK": rank, **env}
            os.environ.update({name: str(value) for name, value in changes.items()})
            try:
                run(rank)
            except BaseException:
                import traceback
                traceback.print_exc()
                os._exit(1)
            sys.stderr.flush()
            sys.stdout.flush()
            os._exit(0)
        pids.append(pid)
    for pid in pids:
        assert os.waitpid(pid, 0)[1] == 0
"""
GLOO = {"HPCLAUNCH_RANKS_PER_GPU": 2, "HPCLAUNCH_SHARED_BACKEND": "gloo"}


def run(forks, store, cwd, text, *args):
    """Return what a script with forked ranks wrote to stdout and stderr."""
    arguments = f"import sys\nsys.argv[1:] = {args!r}\n"
    env = worker_environment(store.port())
    process = forks.start(arguments + RANKS + text, cwd=cwd, env=env)
    out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, out + err
    return out, err


@pytest.fixture
def without_nccl():
    """torch itself refuses to make a group of NCCL: that shows that it was asked to."""
    import torch.distributed as dist

    if dist.is_nccl_available():
        pytest.skip("this torch has NCCL, which waits for a GPU; see tests/gpu/test_nccl.py")


def test_an_unchanged_script_runs_with_gloo(forks, store, tmp_path):
    text = """
def train(rank):
    cuda = torch.device("cuda", 0)
    dist.init_process_group("nccl", timeout=SOON, device_id=cuda, pg_options=object())
    assert dist.get_backend() == "gloo"
    torch.manual_seed(rank)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    model(torch.ones(2, 4)).sum().backward()
    dist.barrier(device_ids=[0])
    total = torch.ones(1)
    dist.all_reduce(total)
    first = torch.full((1,), float(rank))
    dist.broadcast(first, 0)
    ranks = [torch.zeros(1) for _ in range(2)]
    dist.all_gather(ranks, torch.full((1,), float(rank)))
    assert (total.item(), first.item(), [r.item() for r in ranks]) == (2, 0, [0, 1])

    new_group = inspect.signature(dist.new_group).parameters
    near = {"device_id": cuda} if "device_id" in new_group else {}  # not known to an older torch
    group = dist.new_group(backend=dist.Backend.NCCL, pg_options=object(), **near)
    dist.all_reduce(total, group=group)
    same = dist.new_group([0, 1], **near)
    dist.all_reduce(total, group=same)
    own, _ = dist.new_subgroups(1, backend="nccl")
    mesh = dist.init_device_mesh("cpu", (2, 1), mesh_dim_names=("data", "model"))
    dist.all_reduce(total, group=mesh.get_group("data"))
    assert total.item() == 16, total
    groups = {dist.get_backend(g) for g in (group, same, mesh.get_group("data"))}
    assert groups == {"gloo"}, groups
    dist.destroy_process_group()

    asked = {
        "NCCL": "gloo",
        "cpu:gloo,cuda:nccl": "cpu:gloo,cuda:gloo",
        "cuda:nccl": "cuda:gloo",
        "gloo": "gloo",
        None: "gloo",
    }
    for backend, expected in asked.items():
        meeting = meet(str(backend))
        dist.init_process_group(backend, timeout=SOON, **meeting)
        assert dist.get_backend() == expected, (backend, dist.get_backend())
        if expected != "cuda:gloo":
            dist.all_reduce(total)
        # Otherwise a rank that leaves at once cuts off another one that still connects.
        meeting["store"].set(f"connected-{rank}", "")
        meeting["store"].wait([f"connected-{each}" for each in range(2)], SOON)
        dist.destroy_process_group()

forked(train, **json.loads(sys.argv[1]))
"""
    _, err = run(forks, store, tmp_path, text, json.dumps(GLOO))
    lines = [line for line in err.splitlines() if line.startswith("hpclaunch")]
    share = "hpclaunch: 2 workers share a GPU: init_process_group takes gloo in place of "
    assert [line.removeprefix(share).partition(" (")[0] for line in lines] == [
        "'nccl'",
        "'cpu:gloo,cuda:nccl'",
        "'cuda:nccl'",
        "torch's default",
    ]


NO_NCCL = "doesn't have NCCL built in"  # torch has then begun to make an NCCL group
OLD = "2 workers share this GPU, and NCCL 2.29.7 allows one on each"
VERSIONS = {  # (version, workers per GPU, what the user has set): what is said, the variable after
    ((2, 29, 7), 2, None): (OLD, None),
    ((2, 29, 7), 2, "1"): (OLD, "1"),
    ((2, 30, 7), 2, None): (NO_NCCL, "1"),
    ((2, 31, 2, "x"), 2, None): (NO_NCCL, "1"),
    ((2, 30, 7), 3, None): ("NCCL 2.30.7 hangs easily with more than 2", None),
    ((2, 30, 7), 8, "1"): (NO_NCCL, "1"),
    ((2, 30, 7), 2, "0"): ("must not allow it (NCCL_MULTI_RANK_GPU_ENABLE=0)", "0"),
    (None, 8, None): (NO_NCCL, None),
}


def test_the_version_of_nccl_decides(forks, store, tmp_path, without_nccl):
    text = """
from torch.cuda import nccl

def train(rank):
    try:
        dist.init_process_group("nccl", timeout=SOON)
    except RuntimeError as e:
        print(json.dumps([str(e), os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE")]), flush=True)

missing = nccl.version
for version, ranks, allowed in json.loads(sys.argv[1]):
    nccl.version = (lambda: tuple(version)) if version else missing
    env = {} if allowed is None else {"NCCL_MULTI_RANK_GPU_ENABLE": allowed}
    forked(lambda rank: os.environ.update(WORLD_SIZE="2") or train(rank), 1,
           HPCLAUNCH_RANKS_PER_GPU=ranks, **env)
"""
    out, err = run(forks, store, tmp_path, text, json.dumps(list(VERSIONS)))
    answers = [json.loads(line) for line in out.splitlines()]
    for (case, (words, after)), (error, variable) in zip(VERSIONS.items(), answers, strict=True):
        assert words in error, case
        assert variable == after, case
        assert ("--shared-backend gloo" in error) == (words != NO_NCCL), case
    assert err.count("NCCL_MULTI_RANK_GPU_ENABLE=1 has NCCL") == 2, err


def test_only_what_needs_nccl_is_refused(forks, store, tmp_path, without_nccl):
    """A warning if a group can do without NCCL; nothing for a group of one rank."""
    text = """
from torch.cuda import nccl
nccl.version = lambda: (2, 29, 7)

def outcome(name, **how):
    try:
        dist.init_process_group(timeout=SOON, **{**meet(name), **how})
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == dist.get_world_size()
        return "gloo"
    except Exception as e:
        return "refused" if "share this GPU" in str(e) else "torch's: " + str(e)[-30:]
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()

def train(rank):
    outcomes = {
        "rank": rank,
        "gloo": outcome("gloo", backend="gloo"),
        "default": outcome("default"),
        "unknown": outcome("unknown", backend="cpu:gloo,cuda:boom"),
        "both": outcome("both", backend="cpu:gloo,cuda:nccl"),
        "alone": outcome("alone", backend="nccl", store=dist.HashStore(), rank=0, world_size=1),
    }
    dist.Backend.default_device_backend_map["cpu"] = "nccl"  # as on a machine with GPUs
    outcomes["default with a GPU"] = outcome("default with a GPU")
    dist.init_process_group("gloo", timeout=SOON, **meet("groups"))
    for backend, ranks in (("nccl", None), ("nccl", [0]), ("gloo", None)):
        try:
            dist.new_group(ranks, backend=backend)
            outcomes[f"{backend} {ranks}"] = "gloo"
        except RuntimeError as e:
            outcomes[f"{backend} {ranks}"] = "refused" if "share" in str(e) else "torch's"
    dist.destroy_process_group()
    print(json.dumps(outcomes), flush=True)

forked(train, HPCLAUNCH_RANKS_PER_GPU=2)
"""
    out, err = run(forks, store, tmp_path, text)
    first, second = sorted(
        map(json.loads, out.splitlines()), key=lambda outcomes: outcomes.pop("rank")
    )
    for outcomes in (first, second):
        for torchs in ("unknown", "both", "alone"):
            assert outcomes.pop(torchs).startswith("torch's: "), torchs
    assert first.pop("nccl [0]") == "torch's"
    assert second.pop("nccl [0]") == "gloo"  # not a member
    assert (
        first
        == second
        == {
            "gloo": "gloo",
            "default": "gloo",
            "default with a GPU": "refused",
            "nccl None": "refused",
            "gloo None": "gloo",
        }
    )
    warning = "hpclaunch: warning: 2 workers share this GPU, and NCCL 2.29.7 allows one on each:"
    assert err.count(warning) == 1, err


SHOW = """
import inspect, json, os, sys
import torch.distributed as dist
for f in (dist.init_process_group, dist.new_group, dist.device_mesh.new_group):
    print(f.__name__, f.__qualname__, f.__module__, inspect.signature(f), f.__doc__)
assert dist.device_mesh.init_process_group is dist.init_process_group
for environ in json.loads(sys.argv[1]):
    os.environ.update({name: str(value) for name, value in environ.items()})
    for words in ({"rank": 0, "world_size": 2}, {"rank": 0, "size": 2}):
        try:
            dist.init_process_group("nccl", store=dist.HashStore(), **words)
        except Exception as e:
            print(e)
print([name for name in sys.modules if "_backend" in name and "hpclaunch" in name])
"""


def test_others_have_torch_as_it_is(tmp_path, without_nccl):
    """Without the variables, and below a launcher of the worker's own, all is torch's."""
    environs = [{}, {"HPCLAUNCH_RUN_ID": "another", "TORCHELASTIC_RUN_ID": "71.0", **GLOO}]
    words = ("-W", "ignore", "-c", SHOW, json.dumps(environs))
    plain = python(*words, cwd=tmp_path, env=environment())
    hooked = python(*words, cwd=tmp_path, env=environment(HOOKS, HPCLAUNCH_STORE="10.0.0.1:4000"))
    assert (plain.returncode, plain.stderr) == (0, "")
    assert (hooked.stdout, hooked.stderr) == (plain.stdout, plain.stderr)
    assert plain.stdout.count(NO_NCCL) == 2
