"""The environment contract: the environment variables of a worker.

Source: torch/distributed/elastic/agent/server/local_elastic_agent.py and torch/distributed/run.py
(torch 2.13). To a script, the environment must look as under torchrun. Slurm's variables describe
a task: each worker gets the values that it would have as a task.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ..protocol.model import END_SIGNALS, Assignment, Share
from .devices import Gpu

ROLE = "default"
CUDA, HIP = "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"
STEP = "HPCLAUNCH_STEP"
SIGNALS_TO_HANDLE = ",".join(s.name for s in END_SIGNALS)

# Variables that are set when a worker starts, and may differ from those of the agent.
OWN = frozenset(
    {
        *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "HPCLAUNCH_LOCAL_RANK"),
        *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "ROLE_NAME"),
        *("MASTER_ADDR", "MASTER_PORT", "HPCLAUNCH_STORE", "HPCLAUNCH_RUN_ID", "HPCLAUNCH_STEP"),
        *("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID"),
        *("TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_SIGNALS_TO_HANDLE"),
        *("TORCHELASTIC_ERROR_FILE", "HPCLAUNCH_CHECKPOINT", "HPCLAUNCH_PROGRESS"),
        *("HPCLAUNCH_NOTICE_FILE", "HPCLAUNCH_STAGE"),
        *("TORCH_NCCL_ASYNC_ERROR_HANDLING", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"),
        *(CUDA, HIP, "ZE_AFFINITY_MASK", "CUDA_DEVICE_ORDER"),
        *("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"),
        *("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"),
        *("HPCLAUNCH_RANKS_PER_GPU", "HPCLAUNCH_SHARED_BACKEND"),
        *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS", "SLURM_NPROCS"),
        *("SLURM_NNODES", "SLURM_TASKS_PER_NODE", "SLURM_CPUS_PER_TASK", "SLURM_STEP_NUM_TASKS"),
        *("SLURM_STEP_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE", "SLURM_GTIDS"),
        *("SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURM_STEP_NODELIST"),
        *("SLURM_JOB_NUM_NODES", "SLURM_STEP_NUM_NODES"),
        *("SRUN_CPUS_PER_TASK", "SLURM_TRES_PER_TASK", "SLURM_OVERCOMMIT"),
    }
)


def common(
    part: Assignment,
    inherited: Mapping[str, str],
    *,
    run_id: str,
    max_restarts: int,
    interface: str,
    role: str = ROLE,
    signals: str = SIGNALS_TO_HANDLE,
    threads: int = 1,
) -> dict[str, str]:
    """Return the variables that are the same for all workers of one agent.

    They are added to the `inherited` ones. `interface` is the network interface of this agent's
    address ("" if unknown), `threads` the number of cores in a worker's share of the CPUs.
    """
    world = str(part.world_size)
    env = {
        "WORLD_SIZE": world,
        "LOCAL_WORLD_SIZE": str(part.local_world_size),
        "GROUP_RANK": str(part.group_rank),
        "GROUP_WORLD_SIZE": str(part.group_world_size),
        "ROLE_NAME": role,
        "ROLE_WORLD_SIZE": world,
        "MASTER_ADDR": part.store_address,
        "MASTER_PORT": str(part.store_port),
        "TORCHELASTIC_RESTART_COUNT": str(part.restarts),
        "TORCHELASTIC_MAX_RESTARTS": str(max_restarts),
        "TORCHELASTIC_RUN_ID": run_id,
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_SIGNALS_TO_HANDLE": signals,
        "HPCLAUNCH_CHECKPOINT": part.checkpoint,
        # The hooks in worker/site compare these with MASTER_PORT and TORCHELASTIC_RUN_ID. A script
        # that changes MASTER_PORT wants its own store; so does a launcher that the script starts,
        # which has another run id.
        "HPCLAUNCH_RUN_ID": run_id,
        "HPCLAUNCH_STORE": f"{part.store_address}:{part.store_port}",
    }
    if step := step_of(inherited):
        env[STEP] = step
    defaults = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}
    if interface:
        # Without an interface, gloo and TensorPipe resolve the name of their own host, perhaps to
        # 127.0.1.1. Both accept only a single interface.
        defaults["GLOO_SOCKET_IFNAME"] = interface
        defaults["TP_SOCKET_IFNAME"] = interface
    env |= {name: value for name, value in defaults.items() if name not in inherited}
    return env | at_load(inherited, threads=0 if part.local_world_size == 1 else threads)


def step_of(environ: Mapping[str, str]) -> str:
    """Return Slurm's "<job>.<step>", with "batch" as the step of a job script; "" without Slurm."""
    job = environ.get("SLURM_JOB_ID")
    return f"{job}.{environ.get('SLURM_STEP_ID', 'batch')}" if job else ""


def is_within(environ: Mapping[str, str]) -> bool:
    """Return whether a worker started this launcher, so that the tasks of the step belong to
    another launcher.

    The step is compared because a job or step that a worker starts inherits its environment too.
    """
    return STEP in environ and environ[STEP] == step_of(environ)


def at_load(inherited: Mapping[str, str], *, threads: int) -> dict[str, str]:
    """Return those of the common variables that are read only when torch is loaded.

    With 0 `threads`, OpenMP decides, as under torchrun with a single worker. With several workers,
    torchrun sets 1 thread; here, a worker may use all of its share of the CPUs.
    """
    wanted = threads and "OMP_NUM_THREADS" not in inherited
    return {"OMP_NUM_THREADS": str(threads)} if wanted else {}


def per_worker(
    part: Assignment, offset: int, *, error_file: str, virtual: bool = False
) -> dict[str, str]:
    """Return the variables of the worker at `offset` (0 .. nproc - 1) of its agent.

    `virtual`: the worker sees its own GPUs only, so LOCAL_RANK is 0: scripts use it as the index of
    their device.
    """
    rank = str(part.first_rank + offset)
    position = part.first_local_rank + offset
    return {
        "RANK": rank,
        "ROLE_RANK": rank,
        "LOCAL_RANK": "0" if virtual else str(position),
        "HPCLAUNCH_LOCAL_RANK": str(position),
        "TORCHELASTIC_ERROR_FILE": error_file,
    }


def of_gpus(
    share: Share,
    gpus: Sequence[Gpu],
    inherited: Mapping[str, str],
    *,
    isolated: bool,
    selector: str,
    backend: str,
) -> dict[str, str]:
    """Return the variables for a worker's GPUs; `gpus` are those of its task.

    `selector` is the variable that selects GPUs of this vendor. `backend` replaces nccl for workers
    that share a GPU ("": nothing does).
    """
    env = {selector: ",".join(gpus[i].entry for i in share.gpus)} if isolated else {}
    if selector == CUDA and "CUDA_DEVICE_ORDER" not in inherited:
        env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # the order of Slurm and of NVML
    if share.sharers > 1:
        env["HPCLAUNCH_RANKS_PER_GPU"] = str(share.sharers)
        if backend:
            env["HPCLAUNCH_SHARED_BACKEND"] = backend
    return env


def of_slurm(
    part: Assignment, offset: int, inherited: Mapping[str, str], *, cpus: int
) -> dict[str, str]:
    """Return Slurm's variables as if Slurm had started the worker as a task; {} without Slurm.

    `cpus` is the number of CPUs in the worker's share. SLURM_CPUS_PER_TASK is always set, because
    many scripts read it; Slurm sets it only with `-c`.

    srun reads several of these variables as options. It refuses to start if the number of nodes
    contradicts the list of nodes, if SLURM_TRES_PER_TASK contradicts SLURM_CPUS_PER_TASK, or if the
    tasks need more CPUs than the job has and may not share them (SLURM_OVERCOMMIT).
    """
    if "SLURM_JOB_ID" not in inherited:
        return {}
    first = part.first_rank - part.first_local_rank
    nodes = str(part.group_world_size)
    # Use Slurm's name for a single node: `part.hosts` may have the host's own name.
    hosts = inherited.get("SLURMD_NODENAME", part.hosts) if nodes == "1" else part.hosts
    env = {
        "SLURM_PROCID": str(part.first_rank + offset),
        "SLURM_LOCALID": str(part.first_local_rank + offset),
        "SLURM_NODEID": str(part.group_rank),
        "SLURM_NTASKS": str(part.world_size),
        "SLURM_NPROCS": str(part.world_size),
        "SLURM_NNODES": nodes,
        "SLURM_TASKS_PER_NODE": part.layout,
        "SLURM_CPUS_PER_TASK": str(cpus),
    }
    on_node = inherited.get("SLURM_CPUS_ON_NODE", "")
    if on_node.isdecimal() and int(on_node) < part.local_world_size:
        env["SLURM_OVERCOMMIT"] = "1"
    also = {
        "SLURM_STEP_NUM_TASKS": str(part.world_size),
        "SLURM_STEP_TASKS_PER_NODE": part.layout,
        "SLURM_NTASKS_PER_NODE": str(part.local_world_size),
        "SLURM_GTIDS": ",".join(map(str, range(first, first + part.local_world_size))),
        "SLURM_JOB_NODELIST": hosts,
        "SLURM_NODELIST": hosts,
        "SLURM_STEP_NODELIST": hosts,
        "SLURM_JOB_NUM_NODES": nodes,
        "SLURM_STEP_NUM_NODES": nodes,
        "SRUN_CPUS_PER_TASK": str(cpus),
        "SLURM_TRES_PER_TASK": re.sub(  # "cpu=8,gres/gpu=1", in Slurm 23.11 "cpu:8,gres:gpu:1"
            r"\bcpu([=:])\d+", rf"cpu\g<1>{cpus}", inherited.get("SLURM_TRES_PER_TASK", "")
        ),
    }
    return env | {name: value for name, value in also.items() if name in inherited}
