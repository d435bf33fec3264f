"""Measure a scrape of the metrics: its time, its bytes, and the CPU time of head and service.

    python bench/metrics.py [--agents 1 1024] [--scrapes 9]

The head is simulated, with 8 workers on each agent that report all their metrics. A real metrics
service asks it, and answers real scrapes over HTTP. Every scrape asks the head again, so its time
includes that of a snapshot. The times of the head and of the service are CPU time per scrape.
"""

import argparse
import selectors
import socket
import statistics
import threading
import time
import urllib.error
import urllib.request

import psutil
from head_scale import WORKERS, Cluster
from idle_agent import cpu

from hpclaunch.agent.metrics import MetricsServiceClient
from hpclaunch.core.head.seat_use import seat_use
from hpclaunch.core.protocol.facts import Category
from hpclaunch.core.protocol.job_snapshot import LaunchSnapshot
from hpclaunch.core.protocol.model import (
    Answer,
    Progress,
    Query,
    QueryKind,
    RankVitals,
    Vitals,
)
from hpclaunch.core.protocol.values import replace
from hpclaunch.observe.ledger import MOST_ENTRIES, Ledger
from hpclaunch.observe.ledger_entries import LedgerEntry
from hpclaunch.system.metrics_target import MetricsTarget
from hpclaunch.system.network.view_socket import LEDGER, ViewSocket, file_of
from hpclaunch.system.shared import packing

ACCEPT = {"Accept": "application/openmetrics-text; version=1.0.0", "Accept-Encoding": "identity"}
APART = 1.05  # seconds between two scrapes: the head is asked at most once a second
LIMIT = 60.0
MIB = 1 << 20


class Agent:
    """A thread that answers as a leading agent does; `spent` has the CPU time of each answer."""

    def __init__(self, agents: int) -> None:
        self._cluster = cluster = Cluster(agents)
        cluster.report()
        cluster.start(0)
        cluster.report(progress=Progress((400,), still=0.1, busy=True, limit=10.0))
        query = Query(QueryKind.VITALS, 1)
        for index, last in enumerate(cluster.reports):
            ranks = range(WORKERS * index, WORKERS * (index + 1))
            vitals = tuple(RankVitals(r, "step", 400, 0, 1.02, 3 << 30) for r in ranks)
            cluster.reports[index] = replace(last, answers=(Answer(query, Vitals(vitals)),))
        cluster.report()
        spent = {Category.TRAINING: float(WORKERS * agents)}
        entries = [
            LedgerEntry(at - 1.0, at, spent[Category.TRAINING], spent, at, (at - 0.5, at), at - 0.7)
            for at in range(1, MOST_ENTRIES)
        ]
        use = seat_use(cluster.head.state, cluster.head.stage, cluster.now, with_last=False)
        self._facts = Ledger(entries, use=use, since=entries[-1].end)
        self.socket = ViewSocket()
        self.spent: list[float] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._answer)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        self.socket.close()

    def _answer(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self.socket, selectors.EVENT_READ)
            while not self._over.is_set():
                if not selector.select(0.1):
                    continue
                for word, address in self.socket.receive():
                    began = time.thread_time()
                    file = file_of(self._ledger() if word == LEDGER else self._snapshot())
                    self.socket.answer(address, file)
                    self.spent.append(time.thread_time() - began)

    def _snapshot(self) -> bytes:
        job = self._cluster.head.snapshot(self._cluster.now)
        return packing.pack(
            LaunchSnapshot("71.0", "71", "n0", 1, "train.py", "", time.time(), 60.0, job)
        )

    def _ledger(self) -> bytes:
        """Return the ledger of a job with as many restarts as a ledger can show."""
        head = self._cluster.head
        use = seat_use(head.state, head.stage, self._cluster.now)
        return packing.pack(self._facts.launch("71.0", use, self._facts.since + 60.0))


def measure(agents: int, scrapes: int) -> None:
    """Measure so many scrapes and print a line of the table."""
    port = free_port()
    agent = Agent(agents)
    client = MetricsServiceClient(agent.socket.name, MetricsTarget(port=port), "")
    try:
        scrape_patiently(port)
        process = psutil.Process(client._process.pid)
        times, size = [], 0
        agent.spent.clear()
        used = cpu([process])
        for _ in range(scrapes):
            time.sleep(APART)
            began = time.perf_counter()
            size = len(scrape(port))
            times.append(time.perf_counter() - began)
        service = (cpu([process]) - used) / scrapes
        print(
            f"{agents:8}{1000 * min(times):9.1f} ms{1000 * statistics.median(times):9.1f} ms"
            f"{size:12,}{1000 * sum(agent.spent) / scrapes:11.1f} ms{1000 * service:11.1f} ms"
            f"{process.memory_full_info().uss / MIB:10.1f} MiB",
            flush=True,
        )
    finally:
        client.abandon()
        agent.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def scrape(port: int) -> bytes:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers=ACCEPT)
    with urllib.request.urlopen(request, timeout=LIMIT) as answer:
        return bytes(answer.read())


def scrape_patiently(port: int) -> None:
    """Scrape as soon as the process listens."""
    limit = time.monotonic() + LIMIT
    while True:
        try:
            scrape(port)
            return
        except urllib.error.URLError:
            if time.monotonic() > limit:
                raise
            time.sleep(0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--agents", type=int, nargs="+", default=[1, 1024])
    parser.add_argument("--scrapes", type=int, default=9)
    args = parser.parse_args()
    print(
        f"{'agents':>8}{'least':>12}{'median':>12}{'bytes':>12}{'the head':>14}"
        f"{'the service':>14}{'memory':>14}"
    )
    for agents in args.agents:
        measure(agents, args.scrapes)


if __name__ == "__main__":
    main()
