"""Metrics as text, over HTTP or for a file, with prometheus_client. Only the metrics process
imports this: importing the library takes longer than starting an agent.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from socketserver import TCPServer
from typing import TextIO
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry, generate_latest, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from hpclaunch.core.protocol.metrics import MetricFamily, MetricKind
from hpclaunch.worker import private_files

READABLE = 0o644
LIMIT = 10.0  # seconds for the next bytes of a request
SUFFIXES = {MetricKind.GAUGE: "", MetricKind.COUNTER: "_total", MetricKind.INFO: "_info"}


class Exposition(Collector):
    """Metrics of a job. `families` is called for each scrape, in a thread of that scrape."""

    def __init__(self, families: Callable[[], list[MetricFamily]]) -> None:
        self._families = families
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def collect(self) -> Iterator[Metric]:
        for family in self._families():
            metric = Metric(family.name, family.help, family.kind.value, family.unit)
            name = family.name + SUFFIXES[family.kind]
            for sample in family.samples:
                metric.add_sample(name, sample.labels, sample.value)
            yield metric

    def serve(self, address: str, port: int) -> None:
        """Serve scrapes from now on, in other threads. Raises OSError."""
        app = make_wsgi_app(self._registry)
        kind = _SixServer if ":" in address else _Server
        server = make_server(address, port, app, kind, handler_class=_Handler)
        try:
            threading.Thread(target=server.serve_forever, daemon=True).start()
        except RuntimeError as e:  # this user may have no further thread
            server.server_close()
            raise OSError(errno.EAGAIN, str(e)) from e

    def write(self, file: Path) -> None:
        """Write a file for node_exporter, which reads the older of the two formats and runs as
        another user. It never sees half a file. Raises OSError.
        """
        new = file.with_name(f".{file.name}.{os.urandom(4).hex()}")
        fd = private_files.open_file(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            with open(fd, "wb") as f:
                f.write(generate_latest(self._registry))
                os.fchmod(f.fileno(), READABLE)
            os.replace(new, file)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(new)
            raise


class _Server(ThreadingWSGIServer):
    def server_bind(self) -> None:
        """Bind without looking up this host's name, which may take long."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = "", self.server_address[1]
        self.setup_environ()

    def handle_error(self, *_: object) -> None:
        """Ignore a client that has gone away."""


class _SixServer(_Server):
    address_family = socket.AF_INET6


class _Handler(WSGIRequestHandler):
    timeout = LIMIT

    def get_stderr(self) -> TextIO:
        """Return a file that nobody reads, to keep tracebacks of bad requests off the console."""
        return io.StringIO()

    def log_message(self, *_: object) -> None:
        """Log nothing: the console belongs to the training."""
