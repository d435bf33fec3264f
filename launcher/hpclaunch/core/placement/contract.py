"""The environment contract: what a worker is told through its environment.

Source: torch/distributed/elastic/agent/server/local_elastic_agent.py and torch/distributed/run.py
(torch 2.13). A script must not be able to tell that it was not started by torchrun. Slurm's own
variables describe a task, and the worker is the task that the script means.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..protocol.model import ENDING, Assignment, Share
from .devices import Gpu

ROLE = "default"
CUDA, HIP = "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"
STEP = "HPCLAUNCH_STEP"
SIGNALS_TO_HANDLE = ",".join(s.name for s in ENDING)

# Variables whose values are known when a worker starts, and differ from the agent's own.
OWN = frozenset(
    {
        *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "HPCLAUNCH_LOCAL_RANK"),
        *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "ROLE_NAME"),
        *("MASTER_ADDR", "MASTER_PORT", "HPCLAUNCH_STORE", "HPCLAUNCH_RUN_ID", "HPCLAUNCH_STEP"),
        *("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID"),
        *("TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_SIGNALS_TO_HANDLE"),
        *("TORCHELASTIC_ERROR_FILE", "HPCLAUNCH_CHECKPOINT"),
        *("TORCH_NCCL_ASYNC_ERROR_HANDLING", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"),
        *(CUDA, HIP, "ZE_AFFINITY_MASK", "CUDA_DEVICE_ORDER"),
        *("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"),
        *("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"),
        *("HPCLAUNCH_RANKS_PER_GPU", "HPCLAUNCH_SHARED_BACKEND", "HPCLAUNCH_GPU"),
        *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS", "SLURM_NPROCS"),
        *("SLURM_NNODES", "SLURM_TASKS_PER_NODE", "SLURM_CPUS_PER_TASK", "SLURM_STEP_NUM_TASKS"),
        *("SLURM_STEP_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE", "SLURM_GTIDS"),
        "SRUN_CPUS_PER_TASK",
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
    """The variables that all workers of one agent share, over those they inherit.

    `threads` are those of a worker's share of the CPUs.
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
        # For the hooks in worker/site: a script that changes MASTER_PORT means a store of its own,
        # and a launcher within it has another id.
        "HPCLAUNCH_RUN_ID": run_id,
        "HPCLAUNCH_STORE": f"{part.store_address}:{part.store_port}",
    }
    if step := step_of(inherited):
        env[STEP] = step
    defaults = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}
    if interface:
        # Both take one concrete name; left alone they ask the resolver for our own host name, and
        # that may be 127.0.1.1.
        defaults["GLOO_SOCKET_IFNAME"] = interface
        defaults["TP_SOCKET_IFNAME"] = interface
    env |= {name: value for name, value in defaults.items() if name not in inherited}
    return env | at_load(inherited, threads=0 if part.local_world_size == 1 else threads)


def step_of(environ: Mapping[str, str]) -> str:
    """Slurm's step, or the batch script; "" without Slurm."""
    job = environ.get("SLURM_JOB_ID")
    return f"{job}.{environ.get('SLURM_STEP_ID', 'batch')}" if job else ""


def is_within(environ: Mapping[str, str]) -> bool:
    """Whether a launcher was started by a worker: the tasks of the step are another launcher's.

    A worker that submits a job, or starts a step with srun, hands its environment on to that too.
    """
    return STEP in environ and environ[STEP] == step_of(environ)


def at_load(inherited: Mapping[str, str], *, threads: int) -> dict[str, str]:
    """Those of the shared variables that are read when torch is loaded, and never again.

    0 threads: OpenMP decides, as under torchrun for a worker that is alone. For several torchrun
    says 1 whatever their CPUs are; a worker that has a share of its own may use all of it.
    """
    wanted = threads and "OMP_NUM_THREADS" not in inherited
    return {"OMP_NUM_THREADS": str(threads)} if wanted else {}


def per_worker(
    part: Assignment, offset: int, *, error_file: str, virtual: bool = False
) -> dict[str, str]:
    """The variables of the worker at `offset` (0 .. nproc - 1) of its agent.

    `virtual`: it sees its own GPUs only. Scripts take LOCAL_RANK as the index of their device.
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
    """For a worker with this share of its task's GPUs.

    `selector` is the variable that chooses among GPUs of this maker, `backend` what is to stand in
    for nccl where workers share one ("" for nothing).
    """
    env = {selector: ",".join(gpus[i].entry for i in share.gpus)} if isolated else {}
    if selector == CUDA and "CUDA_DEVICE_ORDER" not in inherited:
        env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # that of Slurm's numbers, and of NVML's
    if share.sharers > 1:
        env["HPCLAUNCH_RANKS_PER_GPU"] = str(share.sharers)
        if backend:
            env["HPCLAUNCH_SHARED_BACKEND"] = backend
    return env


def of_slurm(
    part: Assignment, offset: int, inherited: Mapping[str, str], *, cpus: int
) -> dict[str, str]:
    """Slurm's variables for one worker, as if Slurm had started it as a task; {} without Slurm.

    `cpus` is this worker's share. SLURM_CPUS_PER_TASK exists in a step only when `-c` was given,
    but scripts read it unasked.
    """
    if "SLURM_JOB_ID" not in inherited:
        return {}
    first = part.first_rank - part.first_local_rank
    env = {
        "SLURM_PROCID": str(part.first_rank + offset),
        "SLURM_LOCALID": str(part.first_local_rank + offset),
        "SLURM_NODEID": str(part.group_rank),
        "SLURM_NTASKS": str(part.world_size),
        "SLURM_NPROCS": str(part.world_size),
        "SLURM_NNODES": str(part.group_world_size),
        "SLURM_TASKS_PER_NODE": part.layout,
        "SLURM_CPUS_PER_TASK": str(cpus),
    }
    also = {
        "SLURM_STEP_NUM_TASKS": str(part.world_size),
        "SLURM_STEP_TASKS_PER_NODE": part.layout,
        "SLURM_NTASKS_PER_NODE": str(part.local_world_size),
        "SLURM_GTIDS": ",".join(map(str, range(first, first + part.local_world_size))),
        "SRUN_CPUS_PER_TASK": str(cpus),
    }
    return env | {name: value for name, value in also.items() if name in inherited}
