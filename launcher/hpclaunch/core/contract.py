"""torchrun's environment contract: what a worker is told through its environment.

Source: torch/distributed/elastic/agent/server/local_elastic_agent.py and torch/distributed/run.py
(torch 2.13). A script must not be able to tell that it was not started by torchrun.
"""

from __future__ import annotations

from collections.abc import Mapping

from .model import ENDING, Assignment

ROLE = "default"
SIGNALS_TO_HANDLE = ",".join(s.name for s in ENDING)


def common(
    part: Assignment,
    inherited: Mapping[str, str],
    *,
    run_id: str,
    max_restarts: int,
    interface: str,
) -> dict[str, str]:
    """The variables that all workers of one agent share, over those they inherit."""
    world = str(part.world_size)
    env = {
        "WORLD_SIZE": world,
        "LOCAL_WORLD_SIZE": str(part.local_world_size),
        "GROUP_RANK": str(part.group_rank),
        "GROUP_WORLD_SIZE": str(part.group_world_size),
        "ROLE_NAME": ROLE,
        "ROLE_WORLD_SIZE": world,
        "MASTER_ADDR": part.store_address,
        "MASTER_PORT": str(part.store_port),
        "TORCHELASTIC_RESTART_COUNT": str(part.restarts),
        "TORCHELASTIC_MAX_RESTARTS": str(max_restarts),
        "TORCHELASTIC_RUN_ID": run_id,
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_SIGNALS_TO_HANDLE": SIGNALS_TO_HANDLE,
        "HPCLAUNCH_CHECKPOINT": part.checkpoint,
    }
    defaults = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}
    if part.local_world_size > 1:
        defaults["OMP_NUM_THREADS"] = "1"
    if interface:
        # gloo takes one concrete name; left alone it asks the resolver for our own host name,
        # and that may be 127.0.1.1.
        defaults["GLOO_SOCKET_IFNAME"] = interface
    return env | {name: value for name, value in defaults.items() if name not in inherited}


def per_worker(part: Assignment, offset: int, *, error_file: str) -> dict[str, str]:
    """The variables of the worker at `offset` (0 .. nproc - 1) of its agent."""
    rank = str(part.first_rank + offset)
    return {
        "RANK": rank,
        "ROLE_RANK": rank,
        "LOCAL_RANK": str(part.first_local_rank + offset),
        "TORCHELASTIC_ERROR_FILE": error_file,
    }
