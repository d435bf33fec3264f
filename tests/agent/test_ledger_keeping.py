"""A head's knowledge of its launch, which includes the facts of earlier heads."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace

import pytest
from crew import Crew

from hpclaunch.agent.ledger_keeping import LedgerKeeping
from hpclaunch.core.protocol.effects import Exit
from hpclaunch.core.protocol.facts import Category, HeadChanged, NodesAllocated, SeatUse
from hpclaunch.core.protocol.model import Origin, Verdict
from hpclaunch.observe.ledger import KINDS
from hpclaunch.system.logs import fact_files
from hpclaunch.system.logs.fact_files import FactFile
from hpclaunch.system.logs.log_client import LogServiceClient
from hpclaunch.system.logs.messages import Facts, ReadFacts
from hpclaunch.system.shared.steady_date import SteadyDate

END = Exit(Verdict(0, "", Origin.DONE))
NAMES = [kind.__name__ for kind in KINDS]


class Logs:
    """A log service that keeps requests to read and written files; `answer` is the callback."""

    def __init__(self):
        self.service = self
        self.asked, self.written = [], {}

    def read_facts(self, directory, launch, kinds, take):
        assert kinds == NAMES
        self.asked.append((str(directory), launch))
        self.answer = take

    def keep(self, directory, files):
        self.written |= files


def training():
    crew = Crew("n0 n1 n2", fewest=1)
    crew.start(0, 1, 2)
    crew.until(100.0)
    return crew


class Slurm:
    """A stand-in for the watch of the job's end, which does not know when the job began."""

    began = None


def config_of(directory, *, anew=False):
    allocation = SimpleNamespace(name="71.0")
    return SimpleNamespace(directory=directory, anew=anew, allocation=allocation)


def ledger_of(crew, agent, directory, logs, record, *, anew=False, slurm=Slurm):
    context = SimpleNamespace(
        config=config_of(directory, anew=anew),
        date=SteadyDate(),
        incarnation=str(agent),
        logs=logs,
        record=record,
    )
    return LedgerKeeping(context, crew.agents[agent], slurm)


def keeping(crew, agent, directory, logs, slurm=Slurm, *, anew=False):
    """Return the ledger of an agent with all facts that the agent has recorded."""

    def record(fact):
        made.note(fact, time.time())

    made = ledger_of(crew, agent, directory, logs, record, anew=anew, slurm=slurm)
    ahead = time.time() - crew.now
    for at, fact in crew.facts.get(agent, []):
        made.note(fact, at + ahead)
    return made, ahead


def written(crew, agents, directory, ahead):
    for agent in agents:
        file, lines = FactFile(directory, str(agent), "71.0", f"n{agent}", str(agent)), []
        file.lines.add = lines.append
        for at, fact in crew.facts[agent]:
            file.record(fact, at + ahead)
        path = directory / ("facts.jsonl" if agent == 0 else f"facts-agent-{agent}.jsonl")
        path.touch(0o600)
        path.write_bytes(b"".join(lines))


def test_the_first_head_knows_all(tmp_path):
    crew, logs = training(), Logs()
    ledger, _ = keeping(crew, 0, tmp_path, logs)
    ledger.update(time.monotonic())
    assert logs.asked == []
    assert ledger.launch().until - ledger.launch().begin > 95
    ledger.conclude(END)
    assert json.loads(logs.written["report.json"])["rounds"] == 1


def test_a_new_head_asks_for_the_facts_of_those_before(tmp_path):
    crew, logs = training(), Logs()
    crew.kill(0)
    crew.until(110.0)
    ledger, ahead = keeping(crew, 1, tmp_path, logs)
    ledger.update(time.monotonic())
    ledger.update(time.monotonic())
    assert logs.asked == [(str(tmp_path), "71.0")]
    assert (ledger.launch(), ledger.goodput(), ledger.packed()) == (None, None, b"")
    logs.answer("")  # nothing was written
    assert ledger.launch() is None
    written(crew, (0, 1), tmp_path, ahead)
    logs.answer(fact_files.lines_of(tmp_path, "71.0", NAMES))
    launch = ledger.launch()
    assert launch.until - launch.begin > 105
    assert [end.round for end in launch.ends] == [0]
    assert ledger.goodput() is not None
    logs.answer(fact_files.lines_of(tmp_path, "71.0", NAMES))  # the same answer again
    assert len(ledger.launch().entries) == len(launch.entries)


def test_a_first_agent_that_was_started_again_reads_the_facts_of_its_first_start(tmp_path):
    """This also holds if it still leads term 0 and its own facts are already in the file."""
    crew, logs = training(), Logs()
    before = [(at, fact) for at, fact in crew.facts[0] if at < 50]
    ledger, ahead = keeping(crew, 0, tmp_path, logs, anew=True)
    assert ledger.launch() is None
    ledger.update(time.monotonic())
    assert logs.asked == [(str(tmp_path), "71.0")]
    lines = []
    for incarnation, facts in (("earlier", before), ("0", crew.facts[0])):
        file = FactFile(tmp_path, "0", "71.0", "n0", incarnation)
        file.lines.add = lines.append
        for at, fact in facts:
            file.record(fact, at + ahead - (200 if incarnation == "earlier" else 0))
    logs.answer(b"".join(lines).decode())
    launch = ledger.launch()
    assert 290 < launch.until - launch.begin < 310
    assert len({entry.begin for entry in launch.entries}) == len(launch.entries)
    ledger.conclude(END)
    assert json.loads(logs.written["report.json"])["begin"] == pytest.approx(launch.begin)


def test_an_earlier_start_may_have_recorded_nothing(tmp_path):
    crew, logs = training(), Logs()
    ledger, _ = keeping(crew, 0, tmp_path, logs, anew=True)
    ledger.update(time.monotonic())
    logs.answer("")
    assert ledger.launch() is not None


def test_a_clock_that_is_set_forward_books_no_time(tmp_path, monkeypatch):
    crew = training()
    ledger, _ = keeping(crew, 0, tmp_path, Logs())
    lasted = ledger.launch().until - ledger.launch().begin
    clock = time.time
    monkeypatch.setattr(time, "time", lambda: clock() + 3600)
    assert ledger.launch().until - ledger.launch().begin < lasted + 60


def test_it_asks_again_until_it_has_the_facts(tmp_path):
    crew, logs = training(), Logs()
    crew.kill(0)
    crew.until(110.0)
    ledger, _ = keeping(crew, 1, tmp_path, logs)
    for _ in range(3):
        ledger.update(ledger.deadline())
    assert len(logs.asked) == 3
    ledger.conclude(END)
    assert logs.written == {}


def test_an_earlier_head_recorded_only_that_it_leads(tmp_path):
    crew, logs, now = training(), Logs(), time.time()
    crew.kill(0)
    crew.until(110.0)
    ledger, _ = keeping(crew, 1, tmp_path, logs)
    ledger.note(HeadChanged("n0", "n1", 9, 0.0), now - 5)
    ledger.note(SeatUse(9, {Category.RESTART: 2.0}), now - 5)
    ledger.update(time.monotonic())
    file, lines = FactFile(tmp_path, "0", "71.0", "n0", "0"), []
    file.lines.add = lines.append
    file.record(HeadChanged("n2", "n0", 8, 0.0), now - 10)
    logs.answer(b"".join(lines).decode())
    assert ledger.launch().begin == now - 5


def test_a_head_without_followers_does_not_record_when_the_nodes_were_allocated(monkeypatch):
    crew = training()
    control, reaches = crew.agents[1], crew._reaches
    monkeypatch.setattr(crew, "_reaches", lambda a, b: a != 1 and reaches(a, b))
    crew.kill(0)
    while not control.leads:
        crew.until(crew.now + 0.1)
    recorded = []
    ledger = ledger_of(crew, 1, None, Logs(), recorded.append, slurm=SimpleNamespace(began=1e9))
    ledger.update(time.monotonic())
    assert recorded == []
    monkeypatch.undo()
    crew.until(crew.now + 5.0)
    ledger.update(time.monotonic())
    assert [type(fact) for fact in recorded] == [NodesAllocated]


def test_the_time_of_the_allocation_is_recorded_once(tmp_path):
    crew, logs = training(), Logs()
    began = float(round(time.time()) - 1000)
    ledger, _ = keeping(crew, 0, tmp_path, logs, SimpleNamespace(began=began))
    for _ in range(2):
        ledger.update(time.monotonic())
    assert ledger.launch().allocated == began


def test_the_use_of_seats_is_recorded_now_and_then():
    """A job that is killed loses only the time since the last record."""
    crew, recorded = training(), []
    ledger = ledger_of(crew, 0, None, Logs(), recorded.append)
    for _ in range(3):
        ledger.update(ledger.deadline())
    assert [(type(use), use.round, use.last.round) for use in recorded] == [(SeatUse, 0, 0)] * 3


@pytest.mark.starts
def test_the_log_service_reads_the_facts_of_a_launch(tmp_path):
    crew = training()
    written(crew, (0,), tmp_path, 1.7e9)
    client = LogServiceClient()
    try:
        client.send(ReadFacts(str(tmp_path / "nowhere"), "71.0", NAMES))  # no answer
        client.send(ReadFacts(str(tmp_path), "70.0", NAMES))
        client.send(ReadFacts(str(tmp_path), "71.0", NAMES))
        client._socket.setblocking(True)
        replies = []
        while len(replies) < 2:
            replies += client.replies()
    finally:
        client.close()
    assert [type(each) for each in replies] == [Facts, Facts]
    assert fact_files.of_lines(replies[0].lines) == []
    (run,) = fact_files.of_lines(replies[1].lines)
    assert [type(fact) for _, fact in run.facts] == [
        type(fact) for _, fact in crew.facts[0] if isinstance(fact, KINDS)
    ]
