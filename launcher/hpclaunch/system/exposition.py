"""Metrics as text, over HTTP or for a file, with prometheus_client. Only the metrics process
imports this: importing the library takes longer than starting an agent.
"""

from __future__ import annotations

import contextlib
import errno
import io
import ipaddress
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from socketserver import TCPServer
from typing import Any, TextIO
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry, generate_latest, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from hpclaunch.core.protocol.metrics import MetricFamily, MetricKind
from hpclaunch.worker import private_files

READABLE = 0o644
MOST = 16  # connections at once
LIMIT = 10.0  # seconds that a connection may last
LARGEST = 1 << 14  # bytes of a request
PAUSE = 0.02  # seconds between two connections while there are too many
SUFFIXES = {MetricKind.GAUGE: "", MetricKind.COUNTER: "_total", MetricKind.INFO: "_info"}


class Exposition(Collector):
    """Metrics of a job. `families` is called for each scrape, in a thread of that scrape."""

    def __init__(self, families: Callable[[], list[MetricFamily]]) -> None:
        self._families = families
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def describe(self) -> list[Metric]:
        """Return no names in advance: they depend on the job."""
        return []

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
        is_six = ipaddress.ip_address(address).version == 6
        kind = _SixServer if is_six else _Server
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
    """A server with at most MOST connections, and a thread for each. A further connection closes
    the oldest: a scrape is soon over, while a stranger may hold a connection open.
    """

    request_queue_size = 64

    def __init__(self, *args: Any) -> None:
        self._room = threading.Semaphore(MOST)
        self._lock = threading.Lock()
        self._open: dict[socket.socket, float] = {}  # deadlines of connections, the oldest first
        super().__init__(*args)

    def server_bind(self) -> None:
        """Bind without looking up this host's name, which may take long."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = "", self.server_address[1]
        self.setup_environ()

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            return super().get_request()
        except OSError:  # for example, no descriptor is left
            time.sleep(PAUSE)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._room.acquire(blocking=False):
            with self._lock:
                oldest = next(iter(self._open), None)
            self._end(oldest)
            time.sleep(PAUSE)  # a client that reconnects again and again must not use up the CPU
            self._room.acquire()
        with self._lock:
            self._open[request] = time.monotonic() + LIMIT
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """End the connections whose time is over. The base class calls this twice a second."""
        with self._lock:
            late = [each for each, until in self._open.items() if time.monotonic() >= until]
        for each in late:
            self._end(each)

    def _end(self, connection: socket.socket | None) -> None:
        """End a connection, if any. Its own thread closes the socket."""
        if connection is not None:
            with contextlib.suppress(OSError):  # it is closed already
                connection.shutdown(socket.SHUT_RDWR)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)
        self._room.release()

    def handle_error(self, *_: object) -> None:
        """Ignore a client that has gone away."""


class _SixServer(_Server):
    address_family = socket.AF_INET6


class _Handler(WSGIRequestHandler):
    timeout = LIMIT

    def handle(self) -> None:
        """Read a request of at most LARGEST bytes, and answer it."""
        head = b""
        with self.rfile as asked:
            while line := asked.readline(LARGEST - len(head)):
                head += line
                if not line.strip():
                    break
        self.rfile = io.BytesIO(head)
        super().handle()

    def get_stderr(self) -> TextIO:
        """Return a file that nobody reads, to keep tracebacks of bad requests off the console."""
        return io.StringIO()

    def log_message(self, *_: object) -> None:
        """Log nothing: the console belongs to the training."""
