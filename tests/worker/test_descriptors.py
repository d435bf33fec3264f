"""The registry of descriptors: what it calls when one is readable."""

from __future__ import annotations

import math
import os
import time

import pytest

from hpclaunch.worker.descriptors import Descriptors


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


def test_who_is_ready_is_called_in_the_order_of_the_registry(pipes):
    found, called = Descriptors(), []
    for number in (2, 0, 1):
        found.add(pipes[number], lambda number=number: called.append(number))
    pipes[0].write()
    pipes[2].write()
    found.handle(found.wait(math.inf))
    assert called == [2, 0]


def test_who_has_closed_meanwhile_is_not_called(pipes):
    found, called = Descriptors(), []
    found.add(pipes[0], pipes[1].close)
    found.add(pipes[1], lambda: called.append(1))
    for pipe in pipes:
        pipe.write()
    found.handle(found.wait(math.inf))
    assert called == []
    assert [*found.wait(math.inf)] == pipes[:1]  # one without a descriptor is left out


def test_owners_that_come_and_go(pipes):
    found, called, there = Descriptors(), [], []
    found.add_some(lambda: there, called.append)
    pipes[1].write()
    assert found.wait(time.monotonic()) == {}
    there.append(pipes[1])
    found.handle(found.wait(math.inf))
    assert called == [pipes[1]]


def test_who_has_opened_a_number_that_was_ready_is_not_called(pipes):
    found, called, there = Descriptors(), [], [pipes[1]]
    found.add(pipes[0], lambda: there.append(reopened(there.pop())))
    found.add_some(lambda: there, called.append)
    number = pipes[1].fileno()
    for pipe in pipes[:2]:
        pipe.write()
    found.handle(found.wait(math.inf))
    (new,) = there
    assert (new.fileno(), called) == (number, [])
    new.write()
    found.handle({new: new.fileno()})
    assert called == [new]
    new.close()


def reopened(pipe):
    """Close a pipe. Return another one with the same numbers."""
    pipe.close()
    return Pipe()
