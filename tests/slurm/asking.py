"""Answers about a running or ended job: `hpclaunch status`, metrics, and `hpclaunch report`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics

from .cluster import Cluster, Job, eventually

PORT = 9400
PAUSE = 0.5  # seconds between two questions, since each starts a program
SCRAPE = """\
import sys, urllib.request
accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
url = f"http://{sys.argv[1]}:{sys.argv[2]}/metrics"
try:
    with urllib.request.urlopen(urllib.request.Request(url, headers=accept), timeout=60) as answer:
        print(answer.read().decode())
except OSError:
    pass
"""
Metrics = dict[tuple[str, ...], float]


def status(cluster: Cluster, *words: str, host: str = "ctl", user: str = "") -> Any:
    """Return what `status --json` prints, or [] if its exit code is not 0."""
    command = ["sh", "-c", 'hpclaunch status "$@" --json 2>&1 || true', "sh", *words]
    output = cluster.on(host, command, user=user)
    return json.loads(output) if output.startswith("[") else []


def wait_until_running(cluster: Cluster, job: int, each: int = 2, **more: Any) -> Any:
    """Wait until all ranks make steps, `each` per agent; return the launch."""
    launches: list[Any] = []

    def all_step() -> bool:
        launches[:] = status(cluster, str(job), **more)
        agents = launches[0]["job"]["agents"] if launches else []
        made = [worker["steps"] for agent in agents for worker in agent["workers"]]
        return bool(agents) and len(made) == each * len(agents) and all(made)

    eventually("steps of all ranks", all_step, pause=PAUSE)
    return launches[0]


def scrape(cluster: Cluster, host: str, *, at: str = "127.0.0.1", port: int = PORT) -> Metrics:
    """Return the metrics that the agent on this host serves; {} if nobody answers."""
    text = cluster.on(host, ["python", "-", at, str(port)], stdin=SCRAPE)
    return values(openmetrics(text.rstrip("\n") + "\n")) if text.strip() else {}


def values(families: Iterable[Metric]) -> Metrics:
    """Return {(name, labels except those of the launch and the agent): value}."""
    common = ("hpc_job", "launch", "agent")
    metrics = {}
    for family in families:
        for sample in family.samples:
            labels = {k: v for k, v in sample.labels.items() if k not in common}
            metrics[(sample.name.removeprefix("hpclaunch_"), *labels.values())] = sample.value
    return metrics


def report(cluster: Cluster, job: Job) -> dict[str, Any]:
    command = f"cd {shlex.quote(str(job.directory))} && hpclaunch report {job.id} --json"
    result: dict[str, Any] = json.loads(cluster.on("n4", ["sh", "-c", command]))
    return result


def logs(job: Job) -> Path:
    return job.directory / "hpclaunch-logs" / f"{job.id}.0"
