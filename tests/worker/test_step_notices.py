"""Notices with real workers: each takes one before the step that it was offered for, or none."""

import json
import subprocess
import sys
import time

import psutil
import pytest

from hpclaunch.worker import step_notices
from hpclaunch.worker.fork_server_messages import Offered, Taken, Unhandled, Unheard
from hpclaunch.worker.progress_watch import ProgressWatch
from hpclaunch.worker.site._hpclaunch_layout import ENTERED, IN_A_ROW
from hpclaunch.worker.step_notices import StepNotices
from hpclaunch.worker.workers import Workers
from surroundings import environment

pytestmark = [pytest.mark.starts, pytest.mark.torch]

LIMIT = 120  # seconds; far more than any of this takes
USR1, USR2, TERM = 10, 12, 15

BEGIN = """
import json, os, signal, sys, time, torch
from hpclaunch.notice import due
model = torch.nn.Linear(4, 2)
made, dues = 0, []
def heard(signum, _):
    os.write(1, json.dumps([signum, made, due()]).encode() + b"\\n")
def loss():
    return model(torch.ones(3, 4)).sum()
def end():
    print(json.dumps([made, dues]), flush=True)
    sys.exit()
"""
TRAIN = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while sys.stdin.readline().strip() != "end":
    loss().backward()
    optimizer.step()
    made += 1
    dues.append(due())
    print(made, flush=True)
end()
"""
UNASKING = TRAIN.replace("dues.append(due())", "pass")
GAN = """
critic, generator = (torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2))
while sys.stdin.readline().strip() != "end":
    for _ in range(3):
        critic.step()
    generator.step()
    made += 1
    dues.append(due())
    print(made, flush=True)
end()
"""
# One model is trained after another: with an optimizer that is made then, or was before.
ANOTHER = """
for _ in range(40):
    torch.optim.SGD(model.parameters(), lr=0.1).step()
"""
ANOTHER += TRAIN
TWO = """
first, optimizer = (torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2))
for each, steps in ((first, 40), (optimizer, IN_A_ROW)):
    for _ in range(steps):
        each.step()
"""
TWO = TWO.replace("IN_A_ROW", str(IN_A_ROW))
TWO += TRAIN.replace("optimizer = torch.optim.SGD(model.parameters(), lr=0.1)", "")
ACCUMULATED = TRAIN.replace(
    "    loss().backward()\n", "    for _ in range(4):\n        loss().backward()\n"
)
SCALED = TRAIN.replace("optimizer.step()", "scaler.step(optimizer); scaler.update()")
SCALED = SCALED.replace("while", 'scaler = torch.amp.GradScaler("cpu")\nwhile', 1)
SCALED = SCALED.replace("loss().backward()", "scaler.scale(loss()).backward()")
COMPILED = "model = torch.compile(model, backend='eager')\n" + TRAIN
COUNTED = """
from hpclaunch.progress import step
while sys.stdin.readline().strip() != "end":
    step(1000 + made)
    made += 1
    dues.append(due())
    print(made, flush=True)
end()
"""
IDLE = """
while sys.stdin.readline().strip() != "end":
    made += 1
    dues.append(due())
    print(made, flush=True)
end()
"""


class Group:
    """Workers below a stand-in for the fork server; each makes a step on request."""

    def __init__(self, forks, *texts, handled=(USR1,), progress=True):
        self.watch = ProgressWatch()
        self.living = Workers(set)
        self.reports = []
        self.notices = StepNotices(self.watch, self.living, self.reports.append)
        variables = self.watch.begin(range(len(texts)))
        self.workers = []
        for rank, text in enumerate(texts):
            setup = "".join(f"signal.signal({s}, heard)\n" for s in handled)
            process = forks.start(BEGIN + setup + text, env=variables[rank] if progress else {})
            self.watch.started(rank, process.pid)
            self.living.started(rank, process.pid, [])
            self.workers.append(process)

    @property
    def pids(self):
        return {rank: process.pid for rank, process in enumerate(self.workers)}

    def give(self, number):
        """Give the notice. Return the ranks that are reported to be unable to take it."""
        self.reports.clear()
        self.notices.give(number)
        return [rank for r in self.reports if isinstance(r, Unhandled) for rank in r.ranks]

    def ask(self, rank, word="step"):
        self.workers[rank].stdin.write(word + "\n")
        self.workers[rank].stdin.flush()

    def hear(self, rank):
        return json.loads(self.workers[rank].stdout.readline())

    def step(self, *ranks):
        for rank in ranks or range(len(self.workers)):
            self.ask(rank)
            self.hear(rank)

    def close(self):
        for process in self.workers:
            process.kill()
            process.communicate()
        self.watch.end()


@pytest.fixture
def group(forks):
    groups = []

    def make(*texts, **more):
        groups.append(Group(forks, *texts, **more))
        return groups[-1]

    yield make
    for each in groups:
        each.close()


KINDS = {"plain": TRAIN, "accumulated": ACCUMULATED, "scaled": SCALED, "compiled": COMPILED}


@pytest.mark.parametrize("text", KINDS.values(), ids=KINDS)
def test_all_take_it_before_the_same_step(group, text):
    both = group(text, text)
    both.step()
    both.step()
    answer = both.notices.offer(1, 4, 0)
    assert answer == Offered(1, accepted=True, busy=False, steps=[2, 2])
    both.step()
    assert both.give(1) == []
    assert not both.notices.is_taken
    for rank in (0, 1):
        both.ask(rank)
        assert both.hear(rank) == [USR1, 3, True]
        assert both.hear(rank) == 4
        both.ask(rank, "end")
        assert both.hear(rank) == [4, [False, False, False, True]]
    assert both.notices.is_taken


def test_a_rank_that_reaches_the_step_waits(group):
    both = group(TRAIN, TRAIN)
    both.step()
    assert both.notices.offer(1, 2, 0).accepted
    both.ask(0)
    wait_until_begun(both, 0, 2)
    later = both.notices.offer(2, 2, 0)  # as if it had not been seen, the same once more
    assert later == Offered(2, accepted=False, busy=False, steps=[1, 2])
    assert both.hear(0) == 2  # it made the step, without a notice
    assert both.notices.offer(3, 3, 0).accepted
    both.ask(0)
    wait_until_begun(both, 0, 3)
    both.give(3)
    assert both.hear(0) == [USR1, 2, True]
    assert both.hear(0) == 3
    assert both.notices.offer(4, 9, 0).busy  # the other one has not taken the last one yet
    both.step(1)
    both.ask(1)
    assert both.hear(1) == [USR1, 2, True]
    assert both.hear(1) == 3
    assert both.notices.offer(5, 9, 0).accepted


def test_a_notice_that_is_withdrawn(group):
    one = group(TRAIN)
    one.step()
    assert one.notices.offer(1, 2, 0).accepted
    one.ask(0)
    wait_until_begun(one, 0, 2)
    one.notices.withdraw()
    assert one.hear(0) == 2
    one.ask(0, "end")
    assert one.hear(0) == [2, [False, False]]


def test_the_optimizer_that_steps_the_most_counts(group):
    one = group(GAN)
    one.step()
    assert one.notices.offer(1, 5, 0) == Offered(1, accepted=True, busy=False, steps=[3, 3])
    one.give(1)
    one.ask(0)
    assert one.hear(0) == [USR1, 1, True]


@pytest.mark.parametrize("text", [ANOTHER, TWO], ids=["made then", "made before"])
def test_a_model_that_is_trained_after_another_one(group, text):
    """The new model's optimizer has made fewer steps, and may never make as many."""
    one = group(text)
    one.step()
    assert one.notices.offer(1, 42, 0) == Offered(1, accepted=True, busy=False, steps=[41, 41])
    one.give(1)
    one.ask(0)
    assert one.hear(0) == [USR1, 1, True]


def test_steps_that_the_script_counts(group):
    one = group(COUNTED)
    one.step()
    assert one.notices.offer(1, 3, 0).steps == [1, 1]
    one.give(1)
    one.step()
    one.ask(0)
    assert one.hear(0) == [USR1, 2, True]


def test_each_before_its_own_next_step(group):
    both = group(TRAIN, TRAIN)
    both.step(0, 1)
    both.step(0)
    assert both.notices.offer(1, 0, 0) == Offered(1, accepted=True, busy=False, steps=[1, 2])
    both.give(1)
    for rank, made in ((0, 2), (1, 1)):
        both.ask(rank)
        assert both.hear(rank) == [USR1, made, True]


def test_workers_that_make_no_steps(group):
    """Such workers get the signal at once, and `due` returns True at the next call."""
    both = group(TRAIN, IDLE)
    both.step()
    assert both.notices.offer(1, 2, 0).accepted
    both.step(1)
    both.give(1)
    assert both.hear(1) == [USR1, 2, True]
    both.ask(1)
    both.hear(1)
    both.ask(1, "end")
    assert both.hear(1) == [3, [False, False, True]]


def test_another_offer_takes_nothing_back(group):
    one = group(IDLE, handled=())
    one.step()
    one.notices.offer(1, 1, 0)
    one.give(1)
    one.notices.offer(2, 1, 0)
    one.step()
    one.notices.withdraw()
    one.step()
    one.ask(0, "end")
    assert one.hear(0) == [3, [False, True, True]]


def test_workers_that_name_their_phases_and_make_no_steps(group):
    names = 'from hpclaunch.progress import phase; phase("evaluation")\n'
    one = group(names + IDLE)
    one.step()
    assert one.notices.offer(1, 1, 0) == Offered(1, accepted=True, busy=False, steps=[])
    one.give(1)
    assert one.hear(0) == [USR1, 1, True]


def test_a_worker_that_ends_at_that_moment(group, monkeypatch):
    """Another program is the worker's parent, and has waited for it already."""
    one = group(IDLE)
    one.step()

    def catches(*_, **__):
        one.workers[0].kill()
        one.workers[0].wait()
        return True

    monkeypatch.setattr(step_notices, "catches", catches)
    one.notices.offer(1, 1, USR1)
    one.give(1)


def test_an_optimizer_that_is_made_after_the_notice(group):
    one = group("sys.stdin.readline(); print(0, flush=True); sys.stdin.readline()\n" + TRAIN)
    one.step()
    assert one.notices.offer(1, 1, 0).accepted
    one.give(1)
    assert one.hear(0) == [USR1, 0, True]
    one.ask(0)
    one.step()
    one.ask(0, "end")
    assert one.hear(0) == [1, [True]]


@pytest.mark.parametrize(
    ("handled", "signum", "got"),
    [((USR2, TERM), 0, USR2), ((TERM,), 0, TERM), ((USR1, TERM), TERM, TERM), ((), 0, 0)],
)
def test_which_signal(group, handled, signum, got):
    one = group(TRAIN, handled=handled)
    one.step()
    one.notices.offer(1, 2, signum)
    assert one.give(1) == []
    one.ask(0)
    heard = one.hear(0)
    assert heard == ([got, 1, True] if got else 2)


def test_a_signal_that_the_script_does_not_handle(group):
    both = group(TRAIN, UNASKING, handled=())
    both.step()
    both.notices.offer(1, 2, USR1)
    assert both.give(1) == [1]
    both.step()


@pytest.mark.parametrize(
    ("handled", "unheard"),
    [((USR1,), []), ((), [0]), ((TERM,), [0])],
    ids=["it", "none", "another"],
)
def test_a_worker_that_has_just_left_may_have_handled_the_signal(group, forks, handled, unheard):
    """Nobody has waited for it yet, and its handlers are gone."""
    one = group(UNASKING, handled=handled)
    one.step()
    with forks.not_waiting():
        one.ask(0, "end")
        while psutil.Process(one.pids[0]).status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)
        one.notices.offer(1, 2, USR1)
        assert one.give(1) == unheard


def test_workers_that_end_with_the_step(group):
    both = group(TRAIN, TRAIN, IDLE)
    both.step()
    both.notices.offer(1, 2, 0)
    both.give(1)
    both.hear(2)
    for rank in (0, 1):
        assert not both.notices.was_last
        both.ask(rank)
        both.hear(rank)
        both.hear(rank)
    assert both.notices.was_last
    both.notices.offer(2, 3, 0)
    both.notices.withdraw()
    both.step(1)
    assert not both.notices.was_last


@pytest.mark.parametrize("ends", [(0,), (0, 1)])
def test_workers_that_had_ended_before(group, ends):
    """A worker with less to do ends first. The others, if any, may reach the step."""
    both = group(TRAIN, TRAIN)
    both.step()
    for rank in ends:
        both.ask(rank, "end")
        both.workers[rank].wait()
        both.living.ended(both.pids[rank])
    both.notices.offer(1, 2, 0)
    both.give(1)
    assert not both.notices.is_taken
    if ends == (0,):
        both.ask(1)
        assert both.hear(1) == [USR1, 1, True]
        assert both.hear(1) == 2
    assert both.notices.is_taken == both.notices.was_last == (ends == (0,))
    both.notices.report_end()
    taken = [Taken(1, last=False), Taken(1, last=True)]
    assert both.reports == (taken if ends == (0,) else [Unheard(1)])


def test_without_progress_it_is_given_at_once(group):
    one = group(TRAIN, progress=False)
    one.step()
    assert one.notices.offer(1, 7, 0) == Offered(1, accepted=True, busy=False, steps=[])
    one.give(1)
    assert one.hear(0)[:2] == [USR1, 1]


def test_due_without_the_launcher():
    program = "from hpclaunch.notice import due; assert due() is False"
    subprocess.run([sys.executable, "-c", program], check=True, env=environment())


def wait_until_begun(group, rank, step):
    limit = time.monotonic() + LIMIT
    its = group.watch.pages[rank]
    while its.number(ENTERED) < step:
        assert time.monotonic() < limit
        time.sleep(0.01)
