"""The checkpoint to resume from: the adapter of the process that searches for checkpoints.

The leading agent has it find the newest complete checkpoint. Every agent has it check that the
chosen one is there. The process knows when each round ran, and with how many ranks, since that
shows whether a checkpoint saved then is complete.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar

from ..core.health.host_rules import Disk
from ..core.protocol import effects, events
from ..core.protocol.facts import CheckpointGone, CheckpointSaved
from ..core.protocol.model import Assignment, Look, Origin, Rounds, Seen, Trouble
from ..core.protocol.node_facts import (
    CheckpointDirSuggested,
    CheckpointSearchStalled,
    CheckpointUnused,
)
from ..core.protocol.values import replace
from ..core.protocol.wording import some
from ..system.checkpoints import NAMES, READS, nothing_known
from ..system.checkpoints.client import CheckpointServiceClient
from ..system.checkpoints.messages import (
    Failed,
    FoundCheckpoint,
    Looked,
    Reply,
    Searched,
    Suggest,
    Suggested,
    Watch,
)
from .adapter import Adapter, Fd, Performs
from .config import Checkpoints
from .context import Context

if TYPE_CHECKING:  # needed only with --stage
    from ..system.staging.messages import Searched as FoundInMemory
    from .spread_staging import SpreadStaging
    from .staged_paths import StagedPaths
    from .staging import Staging

MOST_ROUNDS = 256  # remembered rounds
NEAR = 3  # rounds to send, before and after the one in which a checkpoint was saved
TRIES = 2  # of a search or a look whose process ends or hangs
SETTLED = 1 << 62  # ns; the end of a round whose workers have finished all saves
AGAIN = 1.0  # seconds until the next look for a checkpoint that is not there yet
NEWEST_AGAIN = 10.0  # seconds from one search for the newest checkpoint to the next
LAST_LIMIT = 0.5  # seconds by which a search for the last checkpoint may delay the end of the job
IDLE = 30.0  # seconds without a request until the process is ended; the next request starts another


class Resuming(Adapter):
    """Runs one search and one look at a time. `choose` and `look` begin them; events report the
    results."""

    limits_helper: ClassVar[bool] = True

    def __init__(
        self,
        context: Context,
        look_at_disk: Callable[[Disk], None],
        staging: Staging | None = None,
    ) -> None:
        self._config = config = context.config
        self._staging = staging
        self._settings = config.checkpoints
        self._where = "" if config.checkpoints is None else config.checkpoints.where
        self._is_replaced = context.logs.is_replaced
        self._record = context.record
        self._suggests = config.checkpoints is None  # suggest a directory at the first restart
        self._look_at_disk = look_at_disk
        self._service: CheckpointServiceClient | None = None
        self._searched = ""  # the directory in which it searches
        self._used_at = -math.inf  # the last request or reply
        self._host = context.host
        self._number = 0  # of the newest request
        self._search_number = 0  # of the pending search, or 0
        self._stager_number = 0  # of the search that the stager does instead, or 0
        self._asked = effects.ChooseCheckpoint()  # the core's last request for a search
        self._search_tries = 0  # left
        self._chose = False  # this agent has chosen the next round's checkpoint
        self._choice = events.CheckpointChosen("")  # the last one of this agent
        self._resumed = self._choice  # the checkpoint of the last round
        self._is_unused = False  # a CheckpointUnused was recorded
        self._watches = False  # the process reads each checkpoint as soon as it is saved
        self._look: Look | None = None  # the checkpoint to look for
        self._look_number = 0  # of the pending look, or 0
        self._look_tries = 0  # left
        self._look_at = math.inf  # when to look again
        self._seen: Seen | None = None  # the last answer to this look
        self._rounds: Rounds = ()
        self._newest_number = 0  # of the pending search for the newest, or 0
        self._newest_at = -math.inf  # when the next such search may begin
        self._newest: tuple[str, int] | None = None  # path and time of the newest that is recorded

    def performs(self) -> Performs:
        return {
            effects.ChooseCheckpoint: self.choose,
            effects.LookAt: lambda effect: self.look(effect.look),
            effects.FlushStage: self._flush,
            effects.LeadStagers: self._lead,
        }

    def close(self) -> None:
        if self._service is not None:
            self._service.close()
            self._service = None
        self._newest_number = 0

    # Checkpoints in memory

    @property
    def stage(self) -> StagedPaths | None:
        """Where the script saves in memory; None if it saves on storage."""
        staging = self._staging
        return None if staging is None or self._is_last_on_storage else staging.paths

    @property
    def _is_last_on_storage(self) -> bool:
        """Whether the last search has to find what the script has saved on storage itself."""
        return self._asked.is_last and self._staging is not None and self._staging.saves_directly

    def _flush(self, effect: effects.FlushStage) -> list[events.Event]:
        assert self._staging is not None, "the job stages"
        return self._staging.flush(effect)

    def _lead(self, effect: effects.LeadStagers) -> None:
        if self._spread is not None:
            self._spread.lead(effect)

    @property
    def _spread(self) -> SpreadStaging | None:
        """The adapter of the stager, if checkpoints are in the memory of several nodes."""
        return None if self._staging is None else self._staging.spread

    def _found_in_memory(self, reply: FoundInMemory) -> list[events.Event]:
        """Note what the stager has found in the memory of all nodes."""
        if reply.id == self._newest_number:
            self._newest_number = 0
            if not reply.why:
                self._note_newest(reply.found)
        if reply.id != self._stager_number:
            return []
        self._stager_number = 0
        return [self._failed(reply.why) if reply.why else self._chosen(reply.found)]

    def hurry(self) -> None:
        """Copy checkpoints from memory at full speed until the next round."""
        if self._staging is not None:
            self._staging.hurry()

    def _stored(self, path: str) -> str:
        """Return the path on storage for one that the process has found."""
        return path if self.stage is None else self.stage.stored(path)

    # Rounds

    def began(self, part: Assignment) -> None:
        """Note a round's start. If this agent has chosen the round's checkpoint, have each new one
        read as soon as it is saved.
        """
        self.look(None)
        self.ended()
        if self._spread is not None:
            self._spread.note_round(stages=part.stages)
        self._rounds = (*self._rounds[-MOST_ROUNDS:], (time.time_ns(), None, part.world_size))
        is_own = self._choice.path == part.checkpoint  # else only its path is known
        self._resumed = self._choice if is_own else events.CheckpointChosen(part.checkpoint)
        self._watch(on=self._chose)
        self._chose, self._stager_number = False, 0
        if self._staging is not None:
            self._staging.note_rounds(self._rounds, hurry=False)

    def ended(self) -> None:
        """Note the end of the round: workers may be dead, and leave saves unfinished."""
        if self._rounds and self._rounds[-1][1] is None:
            begun, _, world = self._rounds[-1]
            self._rounds = (*self._rounds[:-1], (begun, time.time_ns(), world))
            self._watch(on=False)
            if self._staging is not None:
                self._staging.note_rounds(self._rounds, hurry=True)

    def stopped(self) -> None:
        """Note that the round ends early. Start the process that looks for the next round's
        checkpoint, while the workers are stopped.
        """
        self.ended()
        if self._settings is not None:
            with contextlib.suppress(OSError):  # the next request tries again
                self._served()

    def failed(self) -> None:
        """Note that a worker has failed, which ends the round."""
        self.stopped()
        if self._staging is not None:
            self._staging.note_failure()

    def _watch(self, *, on: bool) -> None:
        """Have the process read each checkpoint as soon as it is saved, or no longer."""
        if self._settings is None or self._verify(self._settings) not in READS:
            return
        self._watches, self._used_at = on, time.monotonic()
        if self._service is not None:
            self._service.send(Watch(on, self._rounds))
        elif on:
            with contextlib.suppress(OSError):  # the next request tries again
                self._served()

    def _verify(self, settings: Checkpoints) -> str:
        """Return how to verify checkpoints. A machine that crashes may damage bytes on storage, but
        leaves nothing in memory. So what is there is only read with --verify full.
        """
        is_in_memory = self.stage is not None
        return "structure" if is_in_memory and settings.verify == "auto" else settings.verify

    # Requests

    def choose(self, effect: effects.ChooseCheckpoint) -> list[events.Event]:
        """Choose a checkpoint. The event CheckpointChosen or SearchFailed follows, now or later."""
        if self._settings is None:
            self._suggest()
            return [events.CheckpointChosen("", number=effect.number)]
        self._asked, self._search_tries = effect, TRIES
        if self._staging is None or self._is_last_on_storage:
            return self._begin_search()
        self._search_number = self._stager_number = 0
        spread = self._spread
        if spread is not None and not effect.agents:
            spread.forget_search()  # a search that waits for the stager would replace this one
            if effect.ended_well:
                spread.note_rounds(self._rounds_to_judge(ended_well=True), hurry=True)
            self._number += 1
            self._stager_number, self._newest_number = self._number, 0
            spread.search(self._number, self._found_in_memory)
            return []
        with contextlib.suppress(OSError):
            self._served()  # the process starts while the search waits
        return self._staging.before_search(self._begin_search, effect)

    def _rounds_to_judge(self, *, ended_well: bool) -> Rounds:
        """Return the rounds so far. If the last one has ended well, all its saves are finished."""
        rounds = self._rounds
        if ended_well and rounds:
            begun, _, world = rounds[-1]
            rounds = (*rounds[:-1], (begun, SETTLED, world))
        return rounds

    def _suggest(self) -> None:
        """Suggest a --checkpoint-dir, at the first restart without one. Nothing waits for it."""
        if not (self._suggests and self._rounds):
            return
        self._suggests = False
        with contextlib.suppress(OSError):
            self._served().send(Suggest(self._config.command, self._rounds[0][0]))

    def _begin_search(self) -> list[events.Event]:
        self._search_tries -= 1
        self._chose = True
        try:
            service = self._served()
        except OSError as e:
            return [self._failed(_cannot_start(e))]
        self._number += 1
        self._search_number, self._newest_number = self._number, 0
        rounds = self._rounds_to_judge(ended_well=self._asked.ended_well)
        service.search(self._number, rounds, dict(self._asked.avoid))
        return []

    def look(self, look: Look | None) -> list[events.Event]:
        """Look for this checkpoint only; None: for none. CheckpointSeen follows each new result."""
        self._look, self._seen, self._look_number, self._look_at = look, None, 0, math.inf
        if look is None:
            return []
        if self._spread is not None:
            self._spread.note_round(stages=look.staged)
        self._look_tries = TRIES
        return self._begin_look(look)

    def _begin_look(self, look: Look) -> list[events.Event]:
        self._look_tries -= 1
        self._look_at = math.inf
        if self._settings is None:
            return self._see(look, "it has no --checkpoint-dir")
        if look.staged and self.stage is None:
            return self._see(look, "its scripts cannot save in memory")
        try:
            service = self._served()
        except OSError as e:
            return self._see(look, _cannot_start(e))
        self._number += 1
        self._look_number = self._number
        if self.stage is not None:
            look = replace(look, path=self.stage.staged(look.path))
        service.look(self._number, look, local=self._config.job.local)
        return []

    @property
    def seeks_newest(self) -> bool:
        """Whether a search for the newest checkpoint is pending, and not late."""
        return self._newest_number > 0 and time.monotonic() < self._newest_at

    def seek_newest(self) -> None:
        """Search for the newest checkpoint, and record it if it is new. Do nothing within
        NEWEST_AGAIN of the last such search, or while another request is pending.
        """
        now = time.monotonic()
        if not self._settings or now < self._newest_at:
            return
        if self._search_number or self._stager_number or self._look_number or self._newest_number:
            return
        self._newest_at = now + NEWEST_AGAIN
        spread, number = self._spread, self._number + 1
        with contextlib.suppress(OSError):  # no process can be started now
            if spread is not None:
                spread.search(number, self._found_in_memory)
            else:
                self._served().search(number, self._rounds, dict(self._asked.avoid))
            self._number = self._newest_number = number

    def find_last(self, *, ended_well: bool) -> None:
        """Record the last checkpoint of the job once no worker is left, and wait for the search up
        to LAST_LIMIT. Do nothing if a search for the last one was answered already. `ended_well`:
        the workers have finished all saves.
        """
        if not (self._settings and self._rounds) or self._asked.is_last or self.stage is not None:
            return
        self._number += 1
        until = time.monotonic() + LAST_LIMIT
        with contextlib.suppress(OSError):  # no process can be started now
            service = self._served()
            self._newest_number = self._number
            rounds = self._rounds_to_judge(ended_well=ended_well)
            service.search(self._number, rounds, dict(self._asked.avoid))
            while self._newest_number and service.wait(until - time.monotonic()):
                self.ready((service.fileno(),), time.monotonic())
        self._newest_number = 0

    def _served(self) -> CheckpointServiceClient:
        """Return the process, and start it if there is none. Raises OSError."""
        settings = self._settings or Checkpoints(".", (), "", "structure")
        where = settings.where if self.stage is None else self.stage.where
        if where != self._searched:  # staging has ended
            self.close()
        if self._service is None:
            self._searched = where
            self._service = CheckpointServiceClient(
                where, settings.exclude, settings.complete, self._verify(settings)
            )
            if self._watches:
                self._service.send(Watch(True, self._rounds))
        self._used_at = time.monotonic()
        return self._service

    # Time

    def deadline(self) -> float:
        if self._service is None:
            return self._look_at
        return min(self._look_at, self._service.deadline, self._ends_idle_at)

    @property
    def _ends_idle_at(self) -> float:
        """Return when the process has been idle for long enough to be ended.

        During a round the leading agent's process reads what the workers save, and is not idle.
        """
        is_asked = self._search_number or self._look_number or self._newest_number
        is_busy = self._watches or is_asked or self._look_at < math.inf
        return math.inf if is_busy else self._used_at + IDLE

    def update(self, now: float) -> list[events.Event]:
        """Look again when it is time, replace a process that hangs, and end one that is idle."""
        found: list[events.Event] = []
        if self._look is not None and now >= self._look_at:
            self._look_tries = TRIES
            found += self._begin_look(self._look)
        service = self._service
        if service is None:
            return found
        if now >= self._ends_idle_at:
            self.close()
        elif now >= service.deadline:
            found += self._replace(service)
        return found

    def _replace(self, hung: CheckpointServiceClient) -> list[events.Event]:
        """Have another process do what this one has not done in time."""
        is_awaited = self._search_number or self._look_number  # by a round
        tries = self._search_tries if self._search_number else self._look_tries
        if (is_awaited and not tries) or (self._newest_number and not is_awaited):
            hung.give_time()  # another would hang as well
            return []
        self.close()
        self._record(CheckpointSearchStalled(self._host, self._where))
        return self._ask_again()

    def _ask_again(self) -> list[events.Event]:
        """Ask another process what the last one did not answer."""
        found = self._begin_search() if self._search_number else []
        look = self._look
        if look is not None and self._look_number:
            if self._look_tries:
                return found + self._begin_look(look)
            self._look_number, self._look_at = 0, time.monotonic() + AGAIN
            found += self._see(look, "the process that looks for it has ended repeatedly")
        return found

    # Replies

    def fds(self) -> Iterable[Fd]:
        return () if self._service is None else (self._service.fileno(),)

    def ready(self, fds: Collection[Fd], now: float) -> list[events.Event]:
        service = self._service
        if service is None or service.fileno() not in fds:
            return []
        found: list[events.Event] = []
        self._used_at = now
        for reply in service.replies():
            found += self._on_reply(reply)
        if service.lost:
            self.close()
            if self._is_replaced(service):
                with contextlib.suppress(OSError):
                    self._served()
            if self._search_number and not self._search_tries:
                found.append(self._failed("the process that looks for them has ended"))
            found += self._ask_again()
        return found

    def _on_reply(self, reply: Reply) -> list[events.Event]:
        match reply:
            case Failed(id=number, why=why) if number == self._search_number:
                return [self._failed(why)]
            case Failed(id=number) if number == self._newest_number:
                self._newest_number = 0
            case Searched(id=number, found=found) if number == self._newest_number:
                self._newest_number = 0
                self._note_newest(found)
            case Searched(id=number) if number == self._search_number:
                if self.stage is None:
                    self._look_at_disk(reply.disk)
                self._search_number = 0
                if self._begin_restore(reply):
                    return []
                return [self._chosen(reply.found, nothing_known(self._where, reply.others))]
            case Looked(id=number, missing=missing, damage=damage) if number == self._look_number:
                self._look_number = 0
                assert self._look is not None, "a look is pending"
                self._look_at = time.monotonic() + AGAIN if missing else math.inf
                return self._see(self._look, missing, damage)
            case Suggested(where=where, path=path):
                if where:
                    self._record(CheckpointDirSuggested(self._host, where, path))
        return []  # an answer to an old request, or only Begun

    def _note_newest(self, found: Sequence[FoundCheckpoint]) -> FoundCheckpoint | None:
        """Return the newest complete checkpoint. Record a new one, or the loss of the last one."""
        newest = found[-1] if found and found[-1].lacks is None else None
        # The stager finds paths on storage, and the process of this adapter finds them in memory.
        saves = [(self._stored(each.path), each.time) for each in found]
        known = self._newest
        if newest is None:
            if known is not None and all(known[0] != path for path, _ in saves):
                self._newest = None
                self._record(CheckpointGone(known[0]))
        elif saves[-1] != known:
            self._newest = path, _ = saves[-1]
            if self._staging is not None:
                self._staging.copies.note_saved(path)
            self._record(CheckpointSaved(path, newest.step, newest.size, _age(newest)))
        if newest is not None and not self._is_unused:
            self._record_if_unused(newest)
        return newest

    def _record_if_unused(self, newest: FoundCheckpoint) -> None:
        """Record CheckpointUnused if the script saves lower steps than that of the checkpoint from
        which it was to resume.
        """
        path, resumed = self._stored(newest.path), self._resumed
        saved, at = newest.later, newest.later_time
        if path != resumed.path:  # the script may keep only its newest one
            saved, at = newest.name, newest.time
            if _scale(newest, path) != resumed.scale or not _is_lower(newest.step, resumed.step):
                return
        if saved and at > self._rounds[-1][0]:
            self._is_unused = True
            self._record(CheckpointUnused(self._host, resumed.path, saved))

    def _see(self, look: Look, missing: str, damage: str = "") -> list[events.Event]:
        seen = Seen(look.number, look.mark, look.share, missing, damage)
        if seen == self._seen:
            return []
        self._seen = seen
        return [events.CheckpointSeen(seen)]

    def _begin_restore(self, searched: Searched) -> bool:
        """Begin a restore from storage, and return True, in two cases. No checkpoint in memory can
        be used: the job must avoid those that are complete, or a kill has cut short the only one.
        Or a kill has cut short a save, and storage has an earlier save of that name. Another search
        follows the restore.
        """
        found, whys = searched.found, [why for _, why in self._asked.avoid]
        if self._staging is None or self._asked.is_last:
            return False
        avoid = tuple(self._stored(each.path) for each in found if each.lacks in whys)
        is_found = bool(found) and found[-1].lacks is None
        if self._spread:  # other nodes may not have the one that was found here
            is_enough = not avoid
        else:
            cut = {self._stored(f.path) for f in found if f.lacks and not f.quiet}
            is_enough = not any(map(self._staging.copies.has_stored, cut.difference(avoid)))
        if is_found and is_enough:
            return False
        self._search_tries = TRIES
        return self._staging.restore(avoid, self._begin_search)

    def _chosen(
        self, found: Sequence[FoundCheckpoint], lacking: str = ""
    ) -> events.CheckpointChosen:
        staged = self.stage is not None
        newest = self._note_newest(found)
        loud = [f for f in found if f.lacks and not (f.quiet and newest)]
        names: dict[str, list[str]] = {}
        for each in loud:
            lacks = each.lacks or ""
            why = lacks if self.stage is None else self.stage.with_stored(lacks)
            names.setdefault(why, []).append(each.name)
        passed_over = tuple(f"{some(alike, NAMES)}: {why}" for why, alike in names.items())
        passed_over += () if self._staging is None else self._staging.skipped
        if newest is None:
            return events.CheckpointChosen(
                "", passed_over, lacking=lacking, number=self._asked.number, staged=staged
            )
        path = self._stored(newest.path)
        medium = "" if self.stage is None else f", {self.stage.medium}"
        self._choice = events.CheckpointChosen(
            path,
            passed_over,
            newest.identity,
            rule=f"{newest.format}, {newest.rule}{medium}",
            size=newest.size,
            took=newest.took,
            time=newest.time,
            step=newest.step,
            scale=_scale(newest, path),
            rounds=self._near(newest.time),
            is_read=newest.is_read,
            age=_age(newest),
            number=self._asked.number,
            staged=staged,
        )
        return self._choice

    def _near(self, saved: int) -> Rounds:
        """Return the rounds around the time of a save, which show whether it is complete. Agents
        that did not take part in all of them need these.
        """
        before = sum(begun <= saved for begun, _, _ in self._rounds)
        return self._rounds[max(0, before - NEAR) : before + NEAR]

    def _failed(self, why: str) -> events.SearchFailed:
        self._search_number = 0
        reason = f"cannot look for checkpoints in {self._where}: {why}"
        return events.SearchFailed(Trouble(Origin.TROUBLE, reason), self._asked.number)


def _scale(found: FoundCheckpoint, path: str) -> str:
    """Return the scale of its step, of which `CheckpointChosen` says more."""
    return f"{found.scale} {os.path.dirname(path)}"


def _is_lower(step: int | None, than: int | None) -> bool:
    return step is not None and than is not None and step < than


def _age(found: FoundCheckpoint) -> float | None:
    """Return the seconds since it was saved, or None if that is not known."""
    return (time.time_ns() - found.time) / 1e9 if found.time else None


def _cannot_start(error: OSError) -> str:
    return f"the process that looks for checkpoints cannot be started: {error.strerror}"
