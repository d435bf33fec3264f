"""Measure the cost of progress monitoring, per optimizer step and per check of the workers.

    python bench/step_cost.py [--steps 200000] [--workers 8]

The first table is a step of SGD on a single small tensor, the cheapest of steps, with and without
the hook that counts it. The second is the time that the fork server needs to check its workers,
once a second while they train, and twice a second while they are still.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from hpclaunch.system.processes.fork_server_client import SITE
from hpclaunch.worker import progress_watch
from hpclaunch.worker.site import _hpclaunch_layout as layout

sys.path.append(SITE)
from _hpclaunch_hooks import progress

REPEATS = 7
IDLE = "import threading; threading.Thread(target=input).start(); input()"


def per_step(optimizer, steps):
    """Return the seconds per step, the least of some attempts."""
    times = []
    for _ in range(REPEATS):
        begun = time.perf_counter()
        for _ in range(steps):
            optimizer.step()
        times.append((time.perf_counter() - begun) / steps)
    return min(times)


def steps(number):
    tensor = torch.zeros(1, requires_grad=True)
    tensor.grad = torch.zeros(1)
    optimizer = torch.optim.SGD([tensor], lr=0.1)
    watch = progress_watch.ProgressWatch()
    os.environ.update(watch.begin([0])[0])
    progress.begin()
    plain = per_step(optimizer, number)
    handle = register_optimizer_step_post_hook(lambda *_: None)
    empty = per_step(optimizer, number)
    handle.remove()
    progress.watch_optimizers(sys.modules["torch.optim.optimizer"])
    optimizer = torch.optim.SGD([tensor], lr=0.1)  # only optimizers made from now on are counted
    counted = per_step(optimizer, number)
    assert watch.pages[0].number(layout.STEP) >= number
    begun = time.perf_counter()
    for _ in range(number):
        progress.stepped(optimizer)
    alone = (time.perf_counter() - begun) / number
    begun = time.perf_counter()
    for _ in range(number):
        progress.entering(optimizer)
    before = (time.perf_counter() - begun) / number
    print("a step of SGD                  microseconds")
    print(f"without a hook                 {1e6 * plain:12.3f}")
    print(f"with a hook that does nothing  {1e6 * empty:12.3f}")
    print(f"with the counting hook         {1e6 * counted:12.3f}")
    print(f"the counting by itself         {1e6 * alone:12.3f}")
    print(f"the check for a notice         {1e6 * before:12.3f}")


def checks(number):
    watch = progress_watch.ProgressWatch()
    watch.begin(range(number))
    workers = [
        subprocess.Popen([sys.executable, "-c", IDLE], stdin=subprocess.PIPE) for _ in range(number)
    ]
    pids = {rank: worker.pid for rank, worker in enumerate(workers)}
    times = []
    for _ in range(20):
        watch._next = 0.0
        begun = time.perf_counter()
        watch.look(pids)
        times.append(time.perf_counter() - begun)
        time.sleep(progress_watch.LOOK)
    for worker in workers:
        worker.kill()
    moving = []
    for number_of_steps in range(1, 20):
        for its in watch.pages.values():
            its.numbers[layout.STEP] = number_of_steps
        watch._next = 0.0
        begun = time.perf_counter()
        watch.look(pids)
        moving.append(time.perf_counter() - begun)
    print(f"\na check of {number} workers           milliseconds")
    print(f"that train                     {1e3 * statistics.median(moving):12.3f}")
    print(f"that are still                 {1e3 * statistics.median(times):12.3f}")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--workers", type=int, default=8)
    options = parser.parse_args()
    torch.set_num_threads(1)
    steps(options.steps)
    checks(options.workers)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
