"""Worker that computes on its GPU, writes its state to a file, and waits until it may end.

    computing.py DIRECTORY [--mib N] [--beyond N]

It writes DIRECTORY/state-RESTARTS-RANK.json after an all-reduce on the GPU, and ends when
DIRECTORY/go exists. With --mib it holds so much of the GPU's memory; with --beyond it records
whether it could allocate so much more. When DIRECTORY/fault appears, rank 1 of the first round
writes to an illegal address.
"""

import argparse
import ctypes
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

# The driver compiles this for any GPU since 2017.
ILLEGAL = b"""
.version 6.3
.target sm_70
.address_size 64
.visible .entry fault()
{
    .reg .b64 %where;
    .reg .b32 %what;
    mov.u64 %where, 8;
    mov.u32 %what, 1;
    st.global.u32 [%where], %what;
    ret;
}
"""


def fault() -> None:
    """Write to an illegal address; raise torch's error for that."""
    driver = ctypes.CDLL("libcuda.so.1")
    module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
    size, nothing = [ctypes.c_uint(1)] * 6, [None] * 3
    error = (
        driver.cuModuleLoadData(ctypes.byref(module), ILLEGAL)
        or driver.cuModuleGetFunction(ctypes.byref(kernel), module, b"fault")
        or driver.cuLaunchKernel(kernel, *size, ctypes.c_uint(0), *nothing)
    )
    if error:
        raise SystemExit(f"the driver refuses the kernel: CUDA error {error}")
    torch.cuda.synchronize()


def uuid() -> str:
    """Return the UUID of the current device."""
    return f"GPU-{torch.cuda.get_device_properties(torch.cuda.current_device()).uuid}"


def has_room(mib: int) -> bool:
    try:
        torch.empty(mib << 20, dtype=torch.uint8, device="cuda")
    except torch.cuda.OutOfMemoryError:
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--mib", type=int, default=1)
    parser.add_argument("--beyond", type=int, default=1)
    args = parser.parse_args()
    rank, restarts = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    go, fails = args.directory / "go", args.directory / "fault"

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    by_local_rank = uuid()
    torch.cuda.set_device(0)
    ones = torch.ones(64, 64, device="cuda")
    held = torch.zeros(args.mib << 20, dtype=torch.uint8, device="cuda")
    dist.init_process_group("gloo")
    met = torch.ones(1, device="cuda")
    dist.all_reduce(met)
    state = {
        "pid": os.getpid(),
        "env": dict(os.environ),
        "cpus": sorted(os.sched_getaffinity(0)),
        "devices": torch.cuda.device_count(),
        "by_local_rank": by_local_rank,
        "first": uuid(),
        "processors": torch.cuda.get_device_properties(0).multi_processor_count,
        "product": (ones @ ones).sum().item(),
        "met": met.item(),
        "held": held.numel() >> 20,
        "room": has_room(args.beyond),
    }
    draft = args.directory / f"draft-{rank}"
    draft.write_text(json.dumps(state))
    draft.rename(args.directory / f"state-{restarts}-{rank}.json")
    while not go.exists():
        if rank == 1 and not restarts and fails.exists():
            fault()
        time.sleep(0.05)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
