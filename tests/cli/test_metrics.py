"""--metrics on one machine: what Prometheus reads of a job that runs, and that nothing of it can
disturb the training."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest
from launching import hpclaunch, script, until
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as older
from test_status import runs, stepping, waiting

from surroundings import free_port

pytestmark = pytest.mark.starts

DASHBOARD = Path(__file__).parents[2] / "docs" / "grafana-dashboard.json"
PAGE = DASHBOARD.with_name("watching.md")
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def scraped(port):
    """{name: samples} in the format that Prometheus asks for; None while nobody listens."""
    url = f"http://127.0.0.1:{port}/metrics"
    request = urllib.request.Request(url, headers={"Accept": OPENMETRICS})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            text = answer.read().decode()
    except urllib.error.URLError:
        return None
    return by_name(openmetrics(text))


def by_name(families):
    found = {}
    for family in families:
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample)
    return found


def value(metrics, name, **labels):
    (found,) = (s.value for s in metrics[f"hpclaunch_{name}"] if labels.items() <= s.labels.items())
    return found


def with_steps(port):
    """Return the metrics, once the workers report steps."""

    def look():
        found = scraped(port)
        is_there = found and "hpclaunch_goodput_ratio" in found
        return found if is_there and value(found, "round_steps") else None

    return until(look, pause=0.2)


def test_a_job_that_is_scraped_while_it_runs(tmp_path):
    port = free_port()
    with stepping(tmp_path, "--nproc", 2, "--metrics", port) as run:
        metrics = with_steps(port)
        launch = run.until_status(runs)
        for samples in metrics.values():
            for sample in samples:
                assert sample.labels["hpc_job"] == sample.labels["launch"] == launch["name"]
        assert value(metrics, "leads") == 1
        assert value(metrics, "stage", stage="running") == 1
        assert value(metrics, "world_size") == 2
        assert value(metrics, "nodes", state="running") == 1
        spent = sum(sample.value for sample in metrics["hpclaunch_seat_seconds"])
        assert value(metrics, "goodput_ratio") == pytest.approx(
            value(metrics, "seat_seconds", category="training") / spent
        )
        assert "hpclaunch_exit_code" not in metrics
        assert not [s for s in metrics["hpclaunch_info"] if "train.py" in str(s.labels)]
        listening = [c for c in psutil.net_connections("tcp") if c.status == "LISTEN"]
        assert {c.laddr.ip for c in listening if c.laddr.port == port} == {"127.0.0.1"}
        assert run.ends()[0] == 0
        assert scraped(port) is None


def test_every_metric_of_the_dashboard_and_of_the_page_is_there(tmp_path):
    """Exceptions are those that need a GPU, Slurm or checkpoints, as the page says."""
    port = free_port()
    with stepping(tmp_path, "--metrics", port) as run:
        there = set(with_steps(port))
        assert run.ends()[0] == 0
    panels = json.loads(DASHBOARD.read_text())["panels"]
    expressions = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    assert len(expressions) > 10
    page = PAGE.read_text()
    rows = re.findall(r"^\| (`hpclaunch_.*?) \|", page, re.MULTILINE)
    on_page = {name for row in rows for name in re.findall(r"hpclaunch_\w+", row)}
    assert there <= on_page
    used = {name for text in expressions for name in re.findall(r"hpclaunch_\w+", text)}
    assert used <= on_page
    conditional = re.compile(r"hpclaunch_(gpu_|checkpoint_|end_|step$|step_duration|exit_code)")
    assert not [name for name in on_page - there if not conditional.match(name)]


def test_a_port_that_is_taken_is_no_reason_not_to_train(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with waiting(tmp_path, "--metrics", port) as run:
            lines = iter(run.process.stderr.readline, "")
            said = next(line for line in lines if line.startswith("hpclaunch: no metrics of "))
            assert said.endswith(f" for now: port {port} of 127.0.0.1: Address already in use\n")
            run.until_status(runs)
            code, _, err = run.ends()
            assert code == 0, err
            assert "no metrics" not in err


def test_a_file(tmp_path):
    """The file is there while the job runs, and shows the end of the job afterwards."""
    with waiting(tmp_path, "--metrics", "job.prom") as run:
        file = tmp_path / "job.prom"
        until(file.exists)
        assert stat.S_IMODE(file.stat().st_mode) == 0o644
        running = by_name(older(file.read_text()))
        assert value(running, "over") == 0
        logs = run.until_status(runs)["logs"]
        assert run.ends()[0] == 0
    over = by_name(older(file.read_text()))
    assert (value(over, "over"), value(over, "exit_code")) == (1, 0)
    assert value(over, "stage", stage="ended") == 1
    report = json.loads(Path(logs, "report.json").read_text())
    assert value(over, "goodput_ratio") == pytest.approx(report["goodput"], abs=0.1)
    assert [name for name in os.listdir(tmp_path) if "prom" in name] == ["job.prom"]


def test_a_directory_is_kept_in_order(tmp_path):
    directory = tmp_path / "textfile"
    directory.mkdir()
    for name in ("hpclaunch-old.0-0.prom", "hpclaunch-new.0-0.prom", "node.prom"):
        (directory / name).touch()
        if name != "hpclaunch-new.0-0.prom":
            os.utime(directory / name, (1e9, 1e9))
    with waiting(tmp_path, "--metrics", f"{directory}/") as run:
        name = run.until_status(runs)["name"]
        mine = directory / f"hpclaunch-{name}-0.prom"
        until(mine.exists)
        assert run.ends()[0] == 0
    assert value(by_name(older(mine.read_text())), "over") == 1
    assert {file.name for file in directory.iterdir()} == {
        mine.name,
        "hpclaunch-new.0-0.prom",
        "node.prom",
    }


def test_a_directory_that_cannot_be_written_is_no_reason_not_to_train(tmp_path):
    """/proc is one, even for root."""
    done = hpclaunch("--metrics", "/proc/", script(tmp_path, "print('trained')\n"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "trained\n"
    assert done.stderr.count("no metrics of ") == 1
    assert "/proc/: No such file or directory" in done.stderr


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--metrics", "94OO"], "'94OO' is neither PORT, ADDRESS:PORT"),
        (["--metrics", "70000"], "a port is a number from 1 to 65535, not 70000"),
        (["--metrics", "missing/job.prom"], "--metrics: there is no directory missing"),
        (["--metrics", "missing/"], "--metrics: there is no directory missing/"),
    ],
)
def test_mistakes(in_process, tmp_path, words, why):
    done = in_process(*words, script(tmp_path, "print('trained')\n"), cwd=tmp_path)
    assert done.returncode == 2
    assert why in done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


def services(pid):
    """Return the processes that serve the metrics of this launcher."""
    found = []
    for child in psutil.Process(pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):  # or a zombie
            if "hpclaunch.agent.metrics_service" in child.cmdline():
                found.append(child)
    return found


def test_the_process_that_serves_them_is_replaced_and_dies_with_its_agent(tmp_path):
    port = free_port()
    with waiting(tmp_path, "--metrics", port) as run:
        until(lambda: scraped(port), pause=0.2)
        (service,) = services(run.process.pid)
        service.kill()
        (other,) = until(lambda: [s for s in services(run.process.pid) if s.pid != service.pid])
        until(lambda: scraped(port), pause=0.2)
        assert run.until_status(runs)["job"]["round"] == 0
        run.process.kill()
        run.process.communicate()
        until(lambda: not psutil.pid_exists(other.pid) or other.status() == "zombie")


def test_without_the_option_there_is_no_such_process(tmp_path):
    with waiting(tmp_path) as run:
        run.until_status(runs)
        assert services(run.process.pid) == []
        assert run.ends()[0] == 0


def test_an_agent_does_not_load_the_library():
    program = "import sys, hpclaunch.agent.assembly, hpclaunch.cli.options; "
    program += "sys.exit('prometheus_client' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)
