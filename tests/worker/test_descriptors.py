"""The wait for descriptors, and the calls for those that are readable."""

from __future__ import annotations

import functools
import math
import os
import time

import pytest

from hpclaunch.worker.descriptors import await_readable, handle


class Pipe:
    def __init__(self):
        self.reading, self.writing = os.pipe()

    def fileno(self):
        return self.reading

    def write(self):
        os.write(self.writing, b"x")

    def close(self):
        for fd in (self.reading, self.writing):
            os.close(fd)
        self.reading = -1


@pytest.fixture
def pipes():
    pipes = [Pipe() for _ in range(3)]
    yield pipes
    for pipe in pipes:
        if pipe.reading >= 0:
            pipe.close()


def test_who_is_ready_is_called_in_order(pipes):
    called = []
    watched = [(pipes[n], lambda n=n: called.append(n)) for n in (2, 0, 1)]
    pipes[0].write()
    pipes[2].write()
    handle(watched, await_readable(watched, math.inf))
    assert called == [2, 0]


def test_who_has_closed_meanwhile_is_not_called(pipes):
    called = []
    watched = [(pipes[0], pipes[1].close), (pipes[1], lambda: called.append(1))]
    for pipe in pipes:
        pipe.write()
    handle(watched, await_readable(watched, math.inf))
    assert called == []
    assert [*await_readable(watched, math.inf)] == pipes[:1]  # one without a descriptor is left out


def test_nobody_is_waited_for_longer_than_asked(pipes):
    assert await_readable([(pipes[0], pipes[0].close)], time.monotonic()) == {}


def test_who_has_opened_a_number_that_was_ready_is_not_called(pipes):
    called, there = [], [pipes[1]]

    def watched():
        yield pipes[0], lambda: there.append(reopened(there.pop()))
        for pipe in there:
            yield pipe, functools.partial(called.append, pipe)

    number = pipes[1].fileno()
    for pipe in pipes[:2]:
        pipe.write()
    handle(watched(), await_readable(watched(), math.inf))
    (new,) = there
    assert (new.fileno(), called) == (number, [])
    handle([(new, lambda: called.append(new))], {new: new.fileno()})
    assert called == [new]
    new.close()


def reopened(pipe):
    """Close a pipe. Return another one with the same numbers."""
    pipe.close()
    return Pipe()
