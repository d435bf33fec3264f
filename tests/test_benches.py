"""Each benchmark still runs, with its smallest size; the figures are not checked."""

import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parent.parent / "bench"
HELPERS = {
    *("first_step_worker", "measuring", "paced_training", "side_by_side", "stages"),
    *("saving_worker", "slow_storage", "slow_worker", "worker"),
}
SMALLEST = {
    "agent_cost": "--before . --rounds 1 --seconds 0.2",
    "checkpoints": "--files 40 --size 1 --read 0.07 --runs 1",
    "false_hangs": "--cases callback --seconds 2",
    "first_step": "--workers 1 --kinds light --runs 1 --stages",
    "hangs": "--hangs 1 --workers 2 --kinds asleep",
    "head_scale": "--agents 16",
    "help_text": "--runs 1",
    "idle_agent": "--workers 1 --seconds 0.5",
    "journal": "--agents 2 --seconds 10",
    "launch_and_restart": "--workers 2 --runs 1",
    "many_agents": "--agents 4",
    "metrics": "--agents 2 --scrapes 1",
    "node_copies": "--before . --size 4 --runs 1",
    "questions": "--askers 2 --seconds 0.5",
    "restarts_never_hang": "--restarts 1 --torchrun 1 --workers 2",
    "staging": "--only saves goodput --size 4 --saves 1 --kills 1 --minutes 0.05 --fault-every 2",
    "step_cost": "--steps 100 --workers 1",
    "stragglers": "--slow 1 --healthy 0 --workers 2 --seconds 1",
    # These need a cluster, whose start takes a minute.
    "on_slurm": "--help",
    "on_slurm_losses": "--help",
    "endings": "--help",
    "staging_losses": "--help",
    "false_alarms": "--help",
    "chaos": "--help",
}


def test_no_benchmark_is_left_out():
    assert {path.stem for path in BENCH.glob("*.py")} == SMALLEST.keys() | HELPERS


@pytest.mark.starts
@pytest.mark.benches
@pytest.mark.parametrize("name", SMALLEST)
def test_a_benchmark_runs(name):
    command = [sys.executable, BENCH / f"{name}.py", *SMALLEST[name].split()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout
