"""Show the threads, devices and connections of a process after it has imported torch, asked for
GPUs, and used one. Exit code 1 if the import opens a device, which forks would share."""

import os
import time
from pathlib import Path

from open_files import opened


def show(when: str, seconds: float) -> list[str]:
    names = [
        Path(f"/proc/self/task/{task}/comm").read_text().strip()
        for task in os.listdir("/proc/self/task")
    ]
    maps = Path("/proc/self/maps").read_text().splitlines()
    mapped = {line.split()[-1] for line in maps if "/" in line}
    ours = sorted(Path(path).name for path in mapped if "nvidia" in path or "libcuda" in path)
    devices = [path for path in opened() if path.startswith("/dev/nvidia")]
    print(f"{when} ({seconds:.2f} s): threads {sorted(names)}, devices {devices}")
    print(f"  open: {opened()}")
    print(f"  {len(ours)} libraries of NVIDIA: {' '.join(ours)}")
    return devices


began = time.monotonic()
import torch  # noqa: E402

imported = show("torch imported", time.monotonic() - began)
began = time.monotonic()
print("is_available:", torch.cuda.is_available(), "device_count:", torch.cuda.device_count())
show("devices counted by CUDA", time.monotonic() - began)
print("initialised:", torch.cuda.is_initialized(), "bad fork:", torch.cuda._is_in_bad_fork())
began = time.monotonic()
if torch.cuda.is_available():
    torch.ones(1, device="cuda").item()
    show("a first tensor", time.monotonic() - began)
raise SystemExit(1 if imported else 0)
