"""Reports of workers about their start: the lessons for the next template, and why they become new
interpreters. A broken worker may write anything, so what is read is checked here.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
from collections.abc import Iterable
from typing import TypeAlias

from .fork_server_messages import Restart, Step
from .messages import M, made

MOST_BYTES = 1 << 20  # of a lesson

Lesson: TypeAlias = list[Step]


class WorkerPipe:
    """A pipe to which workers write. They open it by its place in /proc when there is something to
    write: until then they have no descriptor that a script could find."""

    def __init__(self) -> None:
        self._reading, self.writing = os.pipe()
        self._data = b""

    def fileno(self) -> int:
        return self._reading


class LessonPipe(WorkerPipe):
    """A pipe for the lesson of one worker, which is a line."""

    def read(self) -> None:
        self._data = (self._data + os.read(self._reading, 1 << 16))[: MOST_BYTES + 1]

    @property
    def lesson(self) -> Lesson | None:
        """The steps once all of them are there, else None. A damaged lesson has no steps."""
        if not self._data.endswith(b"\n") and len(self._data) <= MOST_BYTES:
            return None
        try:
            return [of_values(Step, values) for values in json.loads(self._data)]
        except (ValueError, RecursionError, TypeError):
            return []

    def close(self) -> None:
        os.close(self._reading)
        os.close(self.writing)
        self._reading = self.writing = -1


class RestartReports(WorkerPipe):
    """A pipe to which workers write why they become new interpreters, each in one line."""

    def read(self) -> list[Restart]:
        """Return the reports that are there, without damaged ones."""
        *lines, self._data = (self._data + os.read(self._reading, 1 << 16)).split(b"\n")
        self._data = self._data[-select.PIPE_BUF :]
        found = []
        for line in lines:
            with contextlib.suppress(ValueError, RecursionError, TypeError):
                found.append(of_values(Restart, json.loads(line)))
        return found


def of_values(kind: type[M], values: Iterable[object]) -> M:
    """Return the message with these values of its fields. Raises ValueError or TypeError."""
    return made(kind, dict(zip(kind.__match_args__, values, strict=True)))


class Lessons:
    """The lessons of one or two workers of the round."""

    def __init__(self) -> None:
        self.pipes: list[LessonPipe] = []

    def begin(self, workers: int) -> list[int]:
        """Return the descriptors of this process that these workers are to open; [] if it has too
        many open files."""
        self._close()
        try:
            for _ in range(min(workers, 2)):
                self.pipes.append(LessonPipe())
        except OSError:
            self._close()
        return [pipe.writing for pipe in self.pipes]

    def take(self, pipe: LessonPipe) -> tuple[Lesson, list[str]] | None:
        """Read what is in one of the pipes. Return (steps, variables that differ between the
        workers) once all lessons are complete, else None."""
        pipe.read()
        lessons = [each for pipe in self.pipes if (each := pipe.lesson) is not None]
        if len(lessons) < len(self.pipes):
            return None
        self._close()
        return in_common(lessons[0], lessons[-1])

    def _close(self) -> None:
        for pipe in self.pipes:
            pipe.close()
        self.pipes = []


def in_common(one: Lesson, other: Lesson) -> tuple[Lesson, list[str]]:
    """Return the steps of both workers, in the order of the first, and the variables that they have
    set to different values.
    """
    both = {*other}
    sets = [[(s.name, s.more) for s in steps if s.kind == "set"] for steps in (one, other)]
    names = {name for steps in sets for name, _ in steps}
    values = [{name: [v for n, v in steps if n == name] for name in names} for steps in sets]
    differ = sorted(name for name in names if values[0][name] != values[1][name])
    return [step for step in one if step in both], differ
