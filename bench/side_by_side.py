"""Comparison of several launchers: launch, restart and end, in turn, as a table.

A launch is the time from the command to the last rank's first all-reduce. A restart is the time
from SIGKILL of one worker, half a second later, to the last rank's first all-reduce after it. An
end is the time from the last statement of the workers' script to the end of the launcher.
"""

import random
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from measuring import HPCLAUNCH, TORCHRUN, Run, median
from stages import LAUNCH, RESTART, Stages, launch_stages, print_stages, restart_stages

Launcher = Callable[[], AbstractContextManager[Run]]


@dataclass
class Figures:
    """Values of one launcher, one for each run that got so far; times in seconds."""

    launch: list[float] = field(default_factory=list)
    restart: list[float] = field(default_factory=list)
    end: list[float] = field(default_factory=list)
    launch_stages: list[Stages] = field(default_factory=list)
    restart_stages: list[Stages] = field(default_factory=list)

    def add(self, started: AbstractContextManager[Run]) -> None:
        with started as run:
            launched = run.wait_until_ready(run.began)
            if launched is None:
                return
            self.launch.append(max(r.ready_at for r in launched) - run.began)
            self.launch_stages.append(launch_stages(run.began, launched, run.logs))
            self.rest(run)
            killed = run.kill_worker(run.workers - 1)
            restarted = run.wait_until_ready(killed)
            if restarted is None:
                return
            self.restart.append(max(r.ready_at for r in restarted) - killed)
            self.restart_stages.append(restart_stages(killed, restarted, run.logs))
            ended = run.finish()
            if ended is not None:
                self.end.append(ended)

    def rest(self, _: Run) -> None:
        """Wait until the kill."""
        time.sleep(random.uniform(0.4, 0.6))  # a random moment of torchrun's monitor interval


def compare(
    title: str,
    launchers: Mapping[str, Launcher],
    import_torch: Callable[[], float],
    *,
    runs: int,
    stages: bool,
) -> None:
    """Run all launchers in turn, `runs` times; print the medians, and the stages on request."""
    figures = {name: Figures() for name in launchers}
    imports = []
    for _ in range(runs):
        imports.append(import_torch())
        for name, launcher in launchers.items():
            figures[name].add(launcher())
    imported = median(imports)
    print(f"\n{title}; medians of {runs}; `import torch` alone {imported:.2f} s")
    ratio = f"{TORCHRUN} / {HPCLAUNCH}"
    print(" " * 9 + "".join(f"{name:>18}" for name in figures) + f"{ratio:>23}   completed")
    for what in ("launch", "restart", "end"):
        values_of = {name: getattr(f, what) for name, f in figures.items()}
        times = {name: median(values) for name, values in values_of.items()}
        line = f"{what:9}" + "".join(f"{seconds:16.3f} s" for seconds in times.values())
        line += f"{times[TORCHRUN] / times[HPCLAUNCH]:23.2f}"
        completed = ", ".join(str(len(values)) for values in values_of.values())
        print(f"{line}   {completed} of {runs}")
    launched = median(figures[HPCLAUNCH].launch)
    print(f"{HPCLAUNCH}'s launch takes {launched / imported:.2f} times `import torch`", flush=True)
    if stages:
        print_stages("launch", LAUNCH, {n: f.launch_stages for n, f in figures.items()})
        print_stages("restart", RESTART, {n: f.restart_stages for n, f in figures.items()})
