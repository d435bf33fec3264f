"""Checkpoints in memory (--stage): the adapter of the stager, the process that copies them.

The script saves in the staging directory, and searches look only there. Before the first search,
the stager copies the newest checkpoint on storage into it. If memory does not suffice, the script
saves on storage from the next round on.

With several nodes, each agent has a stager, and that of the leading agent restores before each
round, drains and flushes for all (`stagers.py`). The core decides whether a round saves in memory.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterable
from typing import TypeAlias

from ..core.protocol import effects, events
from ..core.protocol.facts import CheckpointStored
from ..core.protocol.model import Rounds
from ..core.protocol.node_facts import (
    StageAwaited,
    StageBegan,
    StageFetched,
    StageLost,
    StageRefused,
    StoringFailed,
)
from ..system.checkpoints.patterns import split
from ..system.staging import messages
from ..system.staging.client import StagingClient
from ..system.staging.stage_directory import StageDirectory, sweep
from .adapter import Adapter, Fd
from .config import Checkpoints
from .context import Context
from .staged_paths import StagedPaths
from .stagers import OTHERS, Stagers

FIRST_NOTICE, NEXT_NOTICE = 5.0, 60.0  # seconds of a wait until a message about it
AGAIN = 10.0  # seconds until a stager that has ended repeatedly is started once more
ENDS = "the process that copies checkpoints has ended repeatedly"

Search: TypeAlias = Callable[[], list[events.Event]]


class Staging(Adapter):
    """Starts the stager. `paths` has the directories as long as the script saves in memory."""

    def __init__(
        self, context: Context, settings: Checkpoints, stagers: Stagers | None = None
    ) -> None:
        self._host, self._record = context.host, context.record
        self._is_replaced = context.logs.is_replaced
        self._settings, self._job = settings, context.config.job
        self._words = context.config.arguments
        self._stagers = stagers  # with several nodes
        # Called with what the stager has found, in answer to `search`.
        self.on_found: Callable[[messages.Searched], list[events.Event]] = lambda _: []
        self.paths: StagedPaths | None = None
        self.skipped: tuple[str, ...] = ()  # on storage, newer than the restored one: "name: why"
        self.newest = ""  # the newest checkpoint that is known, perhaps only in memory
        self._stored = ""  # the checkpoint that was copied to storage last, or from it
        self._directory: StageDirectory | None = None
        self._client: StagingClient | None = None
        self._start_at = math.inf  # when to start the stager again
        self._rounds: Rounds = ()
        self._hurries = True  # no worker is disturbed by copies at full speed
        self._number = 1  # of the newest request
        self._is_restoring = stagers is None
        self._agents: tuple[int, ...] = ()  # with several nodes: those that need the checkpoint
        self._is_first = False  # no round has begun on any node
        self._search_number = 0  # of the pending search by the stager, or 0
        self._avoid: tuple[str, ...] = ()  # do not restore these
        self._tried: set[tuple[str, ...]] = {()}  # values of `_avoid` since the last round began
        self._has_begun = False
        self._is_flushing = False
        self._is_refused = False  # memory does not suffice from the next round on
        self._search: Search | None = None  # waits for the stager
        self._end: effects.FlushStage | None = None  # the end of the job waits for the stager
        self._until = self._notice_at = math.inf  # of this wait
        self._since = 0.0
        self._copied: messages.Draining | None = None  # so far, of the checkpoint being copied
        self._failed: messages.DrainFailed | None = None  # since the last successful copy
        try:
            sweep(settings.stage)
            storage, pattern = split(settings.where)
            name = "" if stagers is None else stagers.launch
            self._directory = StageDirectory(settings.stage, storage, name)
            self.paths = StagedPaths(storage, self._directory.path, pattern, settings.aliases)
            self._start()
            if stagers is not None:
                self._begin_wait()  # until the stager listens
        except OSError as e:
            # If the job cannot begin, say only why, not also where the script saves.
            self._is_refused = context.config.trouble is not None
            self._refuse(e.strerror or str(e))

    def close(self) -> None:
        """Remove the directory if it is not needed any more. Otherwise leave the stager alone: it
        ends, and removes the directory, once all is on storage.
        """
        if self._stagers is not None and not self._stagers.leads:
            self._leave()
        if self.paths is None:
            self._remove_meanwhile()

    def _leave(self) -> None:
        """End staging: nothing is left in memory that is still needed."""
        self.paths = None
        self._start_at = self._until = self._notice_at = math.inf
        if self._client is not None:
            self._client.close()
            self._client = None
        if self._stagers is not None:
            self._stagers.port, self._stagers.refused = 0, self._stagers.refused or OTHERS

    def _remove(self) -> None:
        if self._directory is not None:
            self._directory.remove()
            self._directory = None

    def _remove_meanwhile(self) -> None:
        """Remove the directory in a thread. With much in memory, this may take long."""
        directory, self._directory = self._directory, None
        if directory is not None:
            threading.Thread(target=directory.remove).start()

    # Requests

    def _start(self) -> None:
        """Start the stager, and request what is pending. Raises OSError."""
        assert self.paths is not None, "there is a staging directory"
        self._start_at = math.inf
        paths, settings = self.paths, self._settings
        self._client = client = StagingClient(
            paths.storage,
            paths.stage,
            settings.exclude,
            settings.complete,
            settings.verify,
            pattern=paths.pattern,
            launch="" if self._stagers is None else self._stagers.launch,
        )
        if self._stagers is not None:
            self._stagers.introduce(client)
        client.rounds(self._rounds, hurry=self._hurries)
        if self._is_restoring:
            client.restore(self._number, self._avoid, self._agents)
        if self._is_flushing:
            client.flush(self._number)
        if self._search_number:
            client.search(self._search_number)

    def note_rounds(self, rounds: Rounds, *, hurry: bool) -> None:
        """Note the rounds so far. `hurry`: copy at full speed, since the last one is ending."""
        self._rounds, self._hurries = rounds, hurry
        if not hurry:
            self.skipped, self._tried = (), set()  # the round that has begun has named them
        if self._client is not None:
            self._client.rounds(rounds, hurry=hurry)

    def note_newest(self, path: str) -> None:
        """Note the newest checkpoint, each time that it is saved."""
        if path == self.newest:
            self._stored = ""
        self.newest = path

    def hurry(self) -> None:
        """Copy at full speed until the next round."""
        self.note_rounds(self._rounds, hurry=True)

    def before_search(self, search: Search, effect: effects.ChooseCheckpoint) -> list[events.Event]:
        """Call `search` once it can find all checkpoints: after the restore and, before the first
        round without staging, once everything is on storage.
        """
        if self.paths is None:
            return search()
        must_flush = self._is_refused and not effect.is_last
        if self._stagers is not None:
            self._agents, self._tried, self._is_first = effect.agents, set(), effect.is_first
            self._is_restoring = self._is_flushing = False  # for an earlier search
            must_flush |= not effect.stages
            if not must_flush:
                self.restore((), search)
                return []
            if not self._may_hold:
                self._leave()
                self._remove()
                return search()
        if not self._is_restoring and not must_flush:
            return search()
        self._search = search
        self._begin_wait()
        if not self._is_restoring and not self._is_flushing:
            self._begin_flush()
        return []

    def forget_search(self) -> None:
        """Do not call the `search` that waits for a restore or a flush: a later one replaces it."""
        self._search, self._notice_at = None, math.inf

    def restore(self, avoid: tuple[str, ...], search: Search) -> bool:
        """Copy the newest checkpoint on storage into memory, but none of `avoid` (paths), and then
        call `search`: there is none in memory that can be used. Return False if that was tried
        since the last round.
        """
        if self.paths is None or avoid in self._tried:
            return False
        self._tried.add(avoid)
        self._search, self._is_restoring, self._avoid = search, True, avoid
        self._number += 1
        self._begin_wait()
        if self._client is not None:  # else the next one is asked
            self._client.restore(self._number, avoid, self._agents)
        return True

    @property
    def is_spread(self) -> bool:
        """Whether the script saves in the memory of several nodes, so that between two restores
        only the stager can search.
        """
        return self._stagers is not None and self.paths is not None

    def search(self, number: int) -> None:
        """Have the stager search in the memory of all nodes. `on_found` follows."""
        self._search_number = number
        if self._client is not None:
            self._client.search(number)

    def lead(self, effect: effects.LeadStagers) -> None:
        assert self._stagers is not None, "the job has several nodes"
        self._stagers.lead(effect, self._client)

    def _follow(self) -> None:
        """Do nothing more for the job: another agent leads it."""
        self._search = self._end = None
        self._is_restoring, self._is_flushing, self._search_number = False, False, 0
        self._until = self._notice_at = math.inf
        if self._client is not None:
            self._client.follow()

    def note_round(self, *, stages: bool) -> None:
        """Note where a round saves, or the head has chosen a checkpoint. If that is on storage, all
        that was saved in memory is there, too.
        """
        if self._stagers is not None and self.paths is not None:
            self._has_begun |= stages
            if not stages:
                self._leave()
                self._remove_meanwhile()

    def flush(self, effect: effects.FlushStage) -> list[events.Event]:
        """Copy everything to storage. The event StageFlushed follows, now or later."""
        if not self._has_begun and self._stagers is None:  # nothing was saved
            self._leave()
        if self.paths is None:
            return [events.StageFlushed(number=effect.number)]
        self._end, self._until = effect, effect.until
        self._begin_wait()
        self._is_restoring, self._search = False, None
        self._begin_flush()
        return []

    def _begin_wait(self) -> None:
        self._since = time.monotonic()
        self._notice_at = self._since + FIRST_NOTICE

    def _begin_flush(self) -> None:
        self._number, self._is_flushing = self._number + 1, True
        if self._client is not None:
            self._client.flush(self._number)
        else:
            self._start_at = time.monotonic()

    def signalled(self, signum: int) -> list[events.Event]:
        """Limit the wait at the end of the job. After Slurm's SIGTERM, SIGKILL follows. A SIGINT,
        or a SIGTERM without Slurm, ends the wait once the user has seen that there is one: earlier
        signals were for the workers.
        """
        now = time.monotonic()
        if self._end is None:
            return []
        is_user = signum == signal.SIGINT or (signum == signal.SIGTERM and not self._job.slurm_id)
        if is_user and now >= self._since + FIRST_NOTICE:
            return self._give_up("interrupted")
        if signum == signal.SIGTERM and self._job.slurm_id:
            timing = self._job.timing
            self._until = min(self._until, now + timing.grace + timing.flush)
        return []

    # Replies

    def fds(self) -> Iterable[Fd]:
        return () if self._client is None else (self._client.fileno(),)

    def ready(self, fds: Collection[Fd], now: float) -> list[events.Event]:
        client = self._client
        if client is None or client.fileno() not in fds:
            return []
        found = [event for reply in client.replies() for event in self._on_reply(reply)]
        if client.lost and self._client is client:
            found += self._replace(client, now)
        return found

    def _replace(self, lost: StagingClient, now: float) -> list[events.Event]:
        """Start another stager. All that is in memory is still there."""
        lost.close()
        self._client, why = None, ENDS
        if self._stagers is not None:
            self._stagers.port = 0
        if self._is_replaced(lost):
            try:
                self._start()
            except OSError as e:
                why = f"{ENDS}: {e.strerror}"
            else:
                return []
        self._start_at = now + AGAIN
        if self._is_restoring:
            return self._on_reply(messages.Refused(self._number, why))
        if self._stagers is not None:
            self._refuse(why)
        return [] if self._end is None else self._give_up(why)

    def _on_reply(self, reply: messages.Reply) -> list[events.Event]:
        match reply:
            case messages.Listening(port=port) if self._stagers is not None:
                self._stagers.port = port
                if self._search is None and self._end is None:
                    self._notice_at = math.inf
            case messages.Restored(id=number) if self._is_restoring and number == self._number:
                return self._begin(reply)
            case messages.Searched(id=number) if number == self._search_number:
                self._search_number = 0
                return self.on_found(reply)
            case messages.Refused(id=number) if self._is_restoring and number == self._number:
                if not self._may_hold:
                    return self._refuse(reply.why, reply.host)
                # The next round begins with one on storage, and saves there.
                self._is_restoring = False
                self._refuse(reply.why, reply.host)
                self._begin_flush()
            case messages.NoRoom(why=why, host=host):
                return self._refuse(why, host)
            case messages.Draining():
                self._copied = reply
            case messages.Drained(path=path, step=step, size=size, seconds=seconds):
                self._copied = self._failed = None
                self._stored = path
                self._record(CheckpointStored(path, step, size, seconds))
                return [events.CheckpointDrained(seconds)]
            case messages.DrainFailed(path=path, why=why):
                is_new = self._failed is None or self._failed.why != why
                if is_new and self._end is None:  # at the end, StageLost names it
                    self._record(StoringFailed(self._host, path, why))
                self._copied, self._failed = None, reply
            case messages.Flushed(id=number) if number == self._number and self._is_flushing:
                self._is_flushing = False
                return self._flushed(reply)
        return []

    def _begin(self, reply: messages.Restored) -> list[events.Event]:
        assert self.paths is not None, "there is a staging directory"
        self._is_restoring, self.skipped = False, reply.skipped
        self._stored = reply.path or self._stored
        if not self._has_begun:
            self._has_begun = True
            where, stage = self._settings.where, self.paths.stage
            words = tuple(word for word in self._words if self.paths.word(word) != word)
            copied = (reply.path, reply.size, reply.seconds)
            self._record(StageBegan(self._host, where, stage, words, *copied))
        if reply.fetched:
            self._record(StageFetched(self._host, reply.fetched, reply.seconds))
        if self._is_refused and self._stagers is None:  # meanwhile, so this round saves on storage
            self._begin_flush()
            return []
        return self._released()

    @property
    def _may_hold(self) -> bool:
        """Whether something may be in memory, here or on another node."""
        return self._has_begun or (self.is_spread and not self._is_first)

    def _refuse(self, why: str, host: str = "") -> list[events.Event]:
        """Save on storage: at once if no worker has begun, otherwise from the next round on."""
        if self._end is not None:
            return []  # all is copied to storage anyway
        host = host or self._host
        why = why if self._stagers is None else f"{host}: {why}"
        if not self._is_refused:
            where = self._settings.where
            self._record(StageRefused(host, where, why, later=self._has_begun))
        self._is_refused = True
        if self._stagers is not None:
            self._stagers.refused = why
        if self._may_hold:
            return []
        self._is_restoring = False
        self._leave()
        self._remove()
        return self._released()

    def _released(self) -> list[events.Event]:
        search, self._search, self._notice_at = self._search, None, math.inf
        return [] if search is None else search()

    def _flushed(self, reply: messages.Flushed) -> list[events.Event]:
        lost = reply.missing
        if self._end is None:
            if not lost:
                self._leave()
                self._remove()
            elif self._agents and self._search and self.restore((), self._search):
                return []
            return self._released()  # what is missing is still in memory, where searches look
        lost += reply.mixed
        if lost:
            why = reply.why or "some of its files are of another save"
            self._record(StageLost(self._host, self._settings.where, lost, why))
        number, self._end = self._end.number, None
        self._leave()
        return [events.StageFlushed(lost, bool(reply.checkpoint), number)]

    def _give_up(self, why: str) -> list[events.Event]:
        """End the wait at the end of the job."""
        self._is_flushing = False
        pending = self._copied or self._failed
        where = self._settings.where
        if pending is None and self._stored and self._stored == self.newest:
            lost, path = f"other files in {where}", ""
        else:
            lost = path = pending.path if pending is not None else self.newest or where
        why = why if self._failed is None else self._failed.why
        return self._flushed(messages.Flushed(self._number, (lost,), why, path))

    # Time

    def deadline(self) -> float:
        return min(self._until, self._notice_at, self._start_at)

    def update(self, now: float) -> list[events.Event]:
        if self._stagers is None:
            return self._update(now)
        if self._stagers.has_resigned():
            self._follow()
        return self._update(now) + self._stagers.news()

    def _update(self, now: float) -> list[events.Event]:
        if now >= self._start_at:
            try:
                self._start()
            except OSError:
                self._start_at = now + AGAIN
        if now >= self._until:
            return self._give_up("no time was left")
        if now >= self._notice_at:
            self._notice_at = now + NEXT_NOTICE
            copied = self._copied or messages.Draining("", 0, 0)
            where, waited = self._settings.where, now - self._since
            progress = (copied.path, copied.done, copied.size, waited)
            is_starting = self._stagers is not None and not self._stagers.port
            is_restore = self._is_restoring or is_starting
            self._record(StageAwaited(self._host, where, *progress, is_restore))
        return []
