"""Stages of a launch and of a restart: when the first and the last process reached each of them.

hpclaunch's stages are in its journals, whose "now" is CLOCK_MONOTONIC. The workers' stages are in
their reports, under every launcher.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from measuring import Report, median

Stages = Mapping[str, tuple[float, float]]  # milliseconds of the first and of the last process

_TEMPLATE = "template ready"
_LAUNCH = {
    "event Started": "agent begins",
    "effect ChooseCheckpoint": "all agents ready",
    "effect StartWorkers": "workers ordered",
    "note template": _TEMPLATE,
    "note started": "workers started",
}
_RESTART = {
    "event WorkerExited": "end of worker noticed",
    "effect StopWorkers": "workers asked to stop",
    "event WorkersGone": "all workers gone",
    "event StoreListening": "next store listens",
    "effect ChooseCheckpoint": "all agents ready",
    "effect StartWorkers": "workers ordered",
    "note template": _TEMPLATE,
    "note started": "workers started",
}
LAUNCH = tuple(_LAUNCH.values())
RESTART = tuple(_RESTART.values())


def launch_stages(began: float, reports: Sequence[Report], logs: Path) -> Stages:
    """Return the stages from the command until all workers were ready."""
    return _stages(_LAUNCH, began, reports, logs)


def restart_stages(killed: float, reports: Sequence[Report], logs: Path) -> Stages:
    """Return the stages from the kill until all workers were ready again."""
    return _stages(_RESTART, killed, reports, logs)


def _stages(
    names: Mapping[str, str], since: float, reports: Sequence[Report], logs: Path
) -> Stages:
    moments: dict[str, list[float]] = {}
    for entry in _entries(logs):
        if (name := names.get(_kind(entry))) and since < entry["now"]:
            moments.setdefault(name, []).append(entry["now"])
    for name in reports[0].marks:
        moments[name] = [report.marks[name] for report in reports]
    return {n: (1000 * (min(m) - since), 1000 * (max(m) - since)) for n, m in moments.items()}


def _entries(logs: Path) -> Iterator[dict[str, Any]]:
    for path in logs.glob("journal*.jsonl"):
        with path.open() as lines:
            yield from map(json.loads, lines)


def _kind(entry: dict[str, Any]) -> str:
    kind, name = next(((k, entry[k]) for k in ("event", "effect", "note") if k in entry), ("", ""))
    value = entry.get("with")
    if name == "WorkerExited" and not value["code"]:
        return ""  # a worker that was asked to stop may end with 0
    if name == "template" and value["state"] != "ready":
        return ""
    return f"{kind} {name}"


def print_stages(title: str, order: Sequence[str], runs: Mapping[str, Sequence[Stages]]) -> None:
    """Print a line for each stage, with a pair of columns for each launcher: medians of its runs.

    `order` has the stages of hpclaunch itself; the workers' stages follow.
    """
    workers = [name for seen in runs.values() for stages in seen for name in stages]
    print(f"\n{title}, ms, first and last")
    print(" " * 26 + "".join(f"{launcher:>18}" for launcher in runs))
    for name in dict.fromkeys((*order, *workers)):
        cells = []
        for seen in runs.values():
            pairs = [stages[name] for stages in seen if name in stages]
            first, last = (median([pair[i] for pair in pairs]) for i in (0, 1))
            cells.append(f"{first:9.0f}{last:9.0f}" if pairs else " " * 18)
        if any(map(str.strip, cells)):
            print(f"  {name:24}" + "".join(cells), flush=True)
