"""Metrics as text, for a real scraper and for a bad one."""

from __future__ import annotations

import functools
import os
import socket
import stat
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Thread

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as older

from hpclaunch.core.protocol.metrics import MetricFamily, MetricKind, MetricSample
from hpclaunch.system import exposition
from hpclaunch.system.exposition import Exposition
from surroundings import free_port

ODD = 'a "job"\nwith \\ in its name'
FAMILIES = [
    MetricFamily("t", MetricKind.INFO, "It.", "", (MetricSample({"job": ODD}, 1.0),)),
    MetricFamily("t_ends", MetricKind.COUNTER, "Ends.", "", (MetricSample({"c": "x"}, 2.0),)),
    MetricFamily("t_age_seconds", MetricKind.GAUGE, "An age.", "seconds", (MetricSample({}, 0.5),)),
]
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


@pytest.fixture
def port():
    return port_of_server()


@functools.cache
def port_of_server():
    """Return the port of a server, which runs until this process ends."""
    port = free_port()
    Exposition(lambda: FAMILIES).serve("127.0.0.1", port)
    return port


def scrape(port, accept="", host="127.0.0.1"):
    request = urllib.request.Request(f"http://{host}:{port}/metrics", headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


def samples(families):
    return {(s.name, *s.labels.values()): s.value for family in families for s in family.samples}


EXPECTED = {("t_info", ODD): 1.0, ("t_ends_total", "x"): 2.0, ("t_age_seconds",): 0.5}


def test_in_both_formats(port):
    kind, text = scrape(port, OPENMETRICS)
    assert kind.startswith("application/openmetrics-text")
    assert samples(openmetrics(text)) == EXPECTED
    assert "# UNIT t_age_seconds seconds\n" in text
    kind, text = scrape(port)
    assert kind.startswith("text/plain")
    assert samples(older(text)) == EXPECTED


def test_many_at_once(port):
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: scrape(port)[1], range(64)))
    assert len(set(answers)) == 1


def test_those_who_break_off_are_not_complained_of(port, capfd):
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            linger = (1).to_bytes(4, "little") + (0).to_bytes(4, "little")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"\0nonsense\r\n\r\n")
        connection.recv(100)
    assert scrape(port)[1]
    assert capfd.readouterr() == ("", "")


@pytest.mark.fuzz
@settings(max_examples=30)
@given(st.text(max_size=20), st.binary(max_size=40))
@example("application/openmetrics-text; version=\u00b2", b"name[]=%ff")
def test_odd_requests_leave_no_word(port, capfd, accept, query):
    with socket.create_connection(("127.0.0.1", port)) as connection:
        head = b"GET /metrics?" + query + b" HTTP/1.0\r\nAccept: " + accept.encode()
        connection.sendall(head + b"\r\n\r\n")
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(1 << 16):
            pass
    assert capfd.readouterr() == ("", "")


def test_who_asks_nothing_is_not_waited_for(port, monkeypatch):
    monkeypatch.setattr(exposition._Handler, "timeout", 0.1)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.settimeout(60)
        assert connection.recv(1) == b""


def test_a_port_that_is_taken(port):
    with pytest.raises(OSError, match="in use"):
        Exposition(list).serve("127.0.0.1", port)


def test_no_further_thread_is_allowed(monkeypatch):
    """A later attempt uses the same port."""

    def refuse(self):
        raise RuntimeError("can't start new thread")

    port = free_port()
    for start in (refuse, Thread.start):
        monkeypatch.setattr(Thread, "start", start)
        with suppress(OSError):
            Exposition(lambda: FAMILIES).serve("127.0.0.1", port)
    urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").close()


def test_ipv6():
    port = free_port()
    try:
        Exposition(lambda: FAMILIES).serve("::1", port)
    except OSError:
        pytest.skip("no IPv6 here")
    assert scrape(port, host="[::1]")[1]


def test_a_file_that_anybody_can_read(tmp_path):
    before = os.umask(0o077)
    try:
        Exposition(lambda: FAMILIES).write(tmp_path / "job.prom")
    finally:
        os.umask(before)
    assert os.listdir(tmp_path) == ["job.prom"]
    file = tmp_path / "job.prom"
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    assert samples(older(file.read_text())) == EXPECTED


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path):
    (tmp_path / "job.prom").mkdir()
    with pytest.raises(OSError, match="directory"):
        Exposition(lambda: FAMILIES).write(tmp_path / "job.prom")
    assert os.listdir(tmp_path) == ["job.prom"]
