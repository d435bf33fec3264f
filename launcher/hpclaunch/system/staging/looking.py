"""The look for checkpoints in memory: which there are, and which are complete."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Collection, Iterator, Sequence

from hpclaunch.system.checkpoints.candidates import SETTLED
from hpclaunch.system.checkpoints.finding import ExaminedCheckpoint, look_at

from .contents import HERE, Contents, contents_of, is_part
from .copying import GivenUpError, reason
from .launch import Launch
from .memory import Memory
from .messages import DrainFailed
from .requests import Requests

PERIOD = 1.0  # least seconds between two looks
SHARE = 0.02  # largest share of the CPU time of a core that looks take
LASTING = 60.0  # seconds in which looks have failed until that is reported
LONGEST = 10.0  # most seconds between two looks


class Looking:
    """The looks of one stager. The next one is `due` at that time."""

    def __init__(self, launch: Launch, requests: Requests, memory: Memory) -> None:
        self._launch, self._requests, self._memory = launch, requests, memory
        self.has_ended = False  # no worker runs any more, so what was written is all
        self.due = 0.0
        self._failing_since = math.inf

    @property
    def is_due(self) -> bool:
        """Return whether a look is due in the middle of other work."""
        return not self.has_ended and time.monotonic() >= self.due

    def look(self) -> list[ExaminedCheckpoint] | None:
        """Return the checkpoints that are in memory now, the newest first; None if the look has
        failed.
        """
        began, cpu_began = time.monotonic(), time.thread_time()
        try:
            self._memory.refresh()
            found = self.found()
            self._failing_since = math.inf
            return found
        except (OSError, GivenUpError) as e:
            self._report(e, began)
            return None
        finally:
            took = time.thread_time() - cpu_began
            self.due = began + max(PERIOD, min(took / SHARE, LONGEST))

    def _report(self, error: OSError | GivenUpError, now: float) -> None:
        """Report a failure that lasts: nothing is drained meanwhile."""
        self._failing_since = min(self._failing_since, now)
        if now >= self._failing_since + LASTING:
            self._requests.send(DrainFailed(self._launch.storage, reason(error)))

    def found(self) -> list[ExaminedCheckpoint]:
        """Return those that the last look has shown. Raises OSError."""
        rounds = self._requests.rounds
        if self.has_ended and rounds:
            begun, _, *world = rounds[-1]
            rounds = (*rounds[:-1], (begun, time.time_ns() + 2 * SETTLED, *world))
        return list(self._launch.seen.examine(rounds))

    def complete(self, found: Sequence[ExaminedCheckpoint]) -> list[Contents]:
        """Return the complete checkpoints, but no mixtures of the saves of several nodes."""
        return self._memory.whole(self.candidates(found))

    def incomplete(
        self, found: Sequence[ExaminedCheckpoint], complete: Collection[Contents]
    ) -> Iterator[Contents]:
        """Yield the checkpoints that lack something, such as the file of another rank. Also yield
        mixtures, but only those that are older than a complete one: others may just be saved again.
        """
        known = {name for each in complete for name in each.moved}
        newest = max((each.time for each in complete), default=0)
        for each in found:
            name = os.path.relpath(each.candidate.path, self._launch.root)
            if each.lacks is not None or not is_part(name, known):
                with contextlib.suppress(OSError):  # being deleted
                    contents = contents_of(self._launch.root, each)
                    files = (item for item in contents.items if item.is_file)
                    if each.lacks is not None or all(file.time < newest for file in files):
                        yield contents

    def candidates(self, found: Sequence[ExaminedCheckpoint]) -> Iterator[Contents]:
        """Yield the complete checkpoints, except those that are only a part of another one."""
        root, moved = self._launch.root, self._launch.record.moved
        drained = moved.keys() - {HERE}
        seen: set[str] = set(moved.get(HERE, ()))
        for each in found:
            name = os.path.relpath(each.candidate.path, root)
            is_inside = is_part(os.path.dirname(name), drained)
            if each.lacks is None and name not in seen and not is_inside:
                with contextlib.suppress(OSError):  # being deleted
                    contents = contents_of(root, each)
                    seen.update(contents.moved)
                    yield contents

    def check(self, contents: Contents) -> None:
        """Raise GivenUpError unless the checkpoint is still complete, and the same."""
        seen, path = self._launch.seen, contents.found.candidate.path
        facts = seen.facts(self._requests.rounds)
        again = look_at(seen.where, path, facts, seen.cache, opens=seen.opens)
        if again is None or (again.lacks is not None and not self.has_ended):
            raise GivenUpError("it is being written again")
        if contents_of(self._launch.root, again).identity != contents.identity:
            raise GivenUpError("it is being written again")
