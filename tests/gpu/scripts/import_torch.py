"""Show which threads, devices and connections a process has that has imported torch, then asked for
GPUs, then used one. Exit code 1 if the import opens a device, which a fork would share."""

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

imported = show("torch is imported", time.monotonic() - began)
began = time.monotonic()
print("is_available:", torch.cuda.is_available(), "device_count:", torch.cuda.device_count())
show("CUDA was asked for devices", time.monotonic() - began)
print("initialised:", torch.cuda.is_initialized(), "bad fork:", torch.cuda._is_in_bad_fork())
began = time.monotonic()
if torch.cuda.is_available():
    torch.ones(1, device="cuda").item()
    show("a first tensor", time.monotonic() - began)
raise SystemExit(1 if imported else 0)
