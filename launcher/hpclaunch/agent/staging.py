"""Checkpoints in memory (--stage): the adapter of the stager, the process that copies them.

The script saves in the staging directory, and searches look only there. Before the first search,
the stager copies the newest checkpoint on storage into it. If memory does not suffice, the script
saves on storage from the next round on. The same follows a round in which a worker failed while
memory was full, or in which the script has saved on storage itself.

This is for one node; `spread_staging.py` extends it for several.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from ..core.protocol import effects, events
from ..core.protocol.facts import CheckpointStored
from ..core.protocol.model import Rounds
from ..core.protocol.node_facts import (
    StageAwaited,
    StageBegan,
    StageDeleted,
    StageFetched,
    StageLost,
    StageRefused,
    StoringFailed,
)
from ..system.checkpoints import split
from ..system.staging import messages
from ..system.staging.client import StagingClient
from ..system.staging.room import room
from ..system.staging.stage_directory import StageDirectory, sweep
from ..worker.memory_kills import MemoryKills
from .adapter import Adapter, Fd
from .config import Checkpoints
from .context import Context
from .stage_waits import Copies, EndWait, Search, Wait
from .staged_paths import StagedPaths

if TYPE_CHECKING:
    from .spread_staging import SpreadStaging

AGAIN = 10.0  # seconds until a stager that has ended repeatedly is started once more
STARTS = 2  # of further stagers, if one ends in the flush before a round
ENDS = "the process that copies checkpoints has ended repeatedly"
MEMORY_USED_UP = "the memory was used up, and the kernel killed a process of this job"


class Staging(Adapter):
    """Starts the stager, and another one if it ends. `paths` has the directories as long as the
    script saves in memory.
    """

    _has_several_nodes = False

    def __init__(self, context: Context, settings: Checkpoints) -> None:
        self._host, self._record = context.host, context.record
        self._is_replaced = context.logs.is_replaced
        self._settings, self._config = settings, context.config
        self._launch = os.urandom(4).hex()  # a part of the names of unfinished copies on storage
        self._agents: tuple[int, ...] = ()  # with several nodes, those that need the checkpoint
        self.paths: StagedPaths | None = None
        self.skipped: tuple[str, ...] = ()  # on storage, newer than the restored one: "name: why"
        self._directory: StageDirectory | None = None
        self._client: StagingClient | None = None
        self._start_at = math.inf  # when to start another stager
        self._started = 0  # stagers since the last flush was requested
        self._is_deleted = False  # the directory was deleted, so its stager ends
        self._rounds: Rounds = ()
        self._hurries = True  # no worker is disturbed by copies at full speed
        self._number = 0  # of the newest request
        self._request: messages.Restore | messages.Flush | None = None  # not answered yet
        self._tried: set[tuple[str, ...]] = {()}  # `avoid` of each restore since the last round
        self._has_begun = False  # a restore is done, or a round saves in memory
        self._is_refused = False  # the next round saves on storage
        self.saves_directly = False  # the script saves on storage in any case
        self._wait: Wait | None = None  # for the stager
        self.copies = Copies()
        self._kills = MemoryKills()

    def begin(self) -> None:
        """Make the staging directory, and begin to restore."""
        self._open()
        if self.paths is not None:
            self._restore(())

    def _open(self) -> None:
        """Make the staging directory and start the stager. If that fails, save on storage."""
        settings = self._settings
        try:
            sweep(settings.stage)
            storage, pattern = split(settings.where)
            self._directory = StageDirectory(settings.stage, storage)
            self.paths = StagedPaths(storage, self._directory.path, pattern, settings.aliases)
            self._start()
        except OSError as e:
            # If the job cannot begin, say only why, not also where the script saves.
            self._is_refused = self._config.trouble is not None
            self._refuse(": ".join(str(word) for word in (e.strerror or e, e.filename) if word))

    @property
    def spread(self) -> SpreadStaging | None:
        """Return this adapter if the script saves in the memory of several nodes, else None."""
        return None

    def close(self) -> None:
        """Remove the directory if it is not needed any more. Otherwise leave the stager alone: it
        ends, and removes the directory, once all is on storage.
        """
        if self.paths is None:
            self._remove()

    def _leave(self) -> None:
        """End staging: nothing is left in memory that is still needed."""
        self.paths = self._request = self._wait = None
        self._start_at = math.inf
        if self._client is not None:
            self._client.close()
            self._client = None

    def _remove(self) -> None:
        """Remove the directory in a thread. With much in memory, this may take long."""
        directory, self._directory = self._directory, None
        if directory is not None:
            threading.Thread(target=directory.remove).start()

    # Requests

    def _start(self) -> None:
        """Start the stager, and request what is pending. Raises OSError."""
        assert self.paths is not None, "there is a staging directory"
        assert self._directory is not None, "there is a staging directory"
        self._start_at = math.inf
        self._directory.renew()
        self._is_deleted = False
        self._started += 1
        self._client = client = self._new_client(self.paths)
        client.send(messages.Rounds(self._rounds, self._hurries))
        self._send_request()

    def _new_client(self, paths: StagedPaths) -> StagingClient:
        settings = self._settings
        search = paths.pattern, settings.exclude, settings.complete, settings.verify
        return StagingClient(
            messages.Settings(
                paths.storage, paths.stage, self._launch, *search, self._has_several_nodes
            )
        )

    def _ask(self, request: messages.Restore | messages.Flush) -> None:
        """Send a request that replaces the pending one. Without a stager, the next one gets it."""
        self._number, self._request = request.id, request
        self._send_request()

    def _send_request(self) -> None:
        if self._client is not None and self._request is not None:
            self._client.send(self._request)

    def note_rounds(self, rounds: Rounds, *, hurry: bool) -> None:
        """Note the rounds so far. `hurry`: copy at full speed, since the last one is ending."""
        self._rounds, self._hurries = rounds, hurry
        if not hurry:
            self.skipped, self._tried = (), set()  # the round's beginning has reported `skipped`
            self._kills.begin()
        if self._client is not None:
            self._client.send(messages.Rounds(rounds, hurry))

    def note_failure(self) -> None:
        """Note that a worker has failed. If memory was full, another round that saves there would
        most likely fail as well.
        """
        if self.paths is None:
            return
        why = MEMORY_USED_UP if self._kills.happened() else ""
        with contextlib.suppress(OSError):
            why = why or room(self.paths.stage).full()
        if why:
            self._refuse(why)

    def hurry(self) -> None:
        """Copy at full speed until the next round."""
        self.note_rounds(self._rounds, hurry=True)

    def before_search(self, search: Search, effect: effects.ChooseCheckpoint) -> list[events.Event]:
        """Call `search` once it can find all checkpoints: after a pending restore, and before the
        first round without staging, once everything is on storage.
        """
        must_flush = self._is_refused and not effect.is_last
        if self.paths is None or not (self._is_restoring or must_flush):
            return search()
        self._wait = Wait(search)
        if self._request is None:
            self._begin_flush()
        return []

    def restore(self, avoid: tuple[str, ...], search: Search) -> bool:
        """Have the stager restore a checkpoint, none of `avoid` (paths), and then call `search`. On
        one node, it copies the newest on storage into memory; on several, it chooses the newest in
        memory or on storage. Return False if the same was tried since the last round.
        """
        if self.paths is None or avoid in self._tried:
            return False
        self._tried.add(avoid)
        self._wait = Wait(search)
        self._restore(avoid)
        return True

    def _restore(self, avoid: tuple[str, ...]) -> None:
        self._ask(messages.Restore(self._number + 1, avoid, self._agents))

    @property
    def _is_restoring(self) -> bool:
        return isinstance(self._request, messages.Restore)

    def flush(self, effect: effects.FlushStage) -> list[events.Event]:
        """Copy everything to storage. The event StageFlushed follows, now or later."""
        if not self._may_hold:
            self._leave()
        if self.paths is None:
            return [events.StageFlushed(number=effect.number)]
        self._wait = EndWait(effect, self._config.job)
        self._begin_flush()
        return []

    def _begin_flush(self) -> None:
        self._started = 0
        self._ask(messages.Flush(self._number + 1))
        if self._client is None:
            self._start_at = time.monotonic()

    def signalled(self, signum: int) -> list[events.Event]:
        """End or limit the wait at the end of the job."""
        wait = self._wait
        is_ended = isinstance(wait, EndWait) and wait.is_ended_by(signum)
        return self._give_up("interrupted") if is_ended else []

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
        """Start another stager. All that is in memory is still there, unless it was deleted."""
        lost.close()
        self._client, why = None, ENDS
        if self._is_deleted or self._is_replaced(lost):
            try:
                self._start()
            except OSError as e:
                why = f"{ENDS}: {e.strerror}"
            else:
                return []
        self._start_at = now + AGAIN
        if self._is_restoring:
            return self._cannot_restore(why)
        return self._give_up(why) if self._is_ending else self._cannot_drain(why)

    def _cannot_drain(self, why: str) -> list[events.Event]:
        """Continue without a stager until the next one is started. If a round waits for a flush,
        that ends after STARTS, and what is only in memory is lost.
        """
        is_flushing = self._wait is not None and isinstance(self._request, messages.Flush)
        if not is_flushing or self._started < STARTS:
            return []
        given_up = self.copies.given_up(self._settings.where, why)
        if given_up.checkpoint:
            self.skipped += (f"{given_up.checkpoint}: {given_up.why}",)
        return self._end_wait(leave=True)

    def _on_reply(self, reply: messages.Reply) -> list[events.Event]:
        pending = None if self._request is None else self._request.id
        match reply:
            case messages.Restored(id=number) if number == pending:
                return self._begin(reply)
            case messages.Refused(id=number) if number == pending:
                return self._cannot_restore(reply.why, reply.host)
            case messages.NoRoom(why=why, host=host):
                return self._refuse(why, host)
            case messages.DirectSave(name=name):
                self.saves_directly = True
                return self._refuse(f"it has saved {name} there, and nothing in memory")
            case messages.UnknownSave(name=name):
                return self._refuse(
                    f"nothing says that {name} is complete, so it is copied only at the end of the "
                    "round (if the script writes some file last, --checkpoint-complete names it)"
                )
            case messages.DirectoryDeleted():
                assert self.paths is not None, "there is a staging directory"
                self._is_deleted = True
                self._record(StageDeleted(self._host, self.paths.stage))
            case messages.DrainProgress():
                self.copies.current = reply
            case messages.Drained(path=path, step=step, size=size, seconds=seconds):
                self.copies.note_drained(path)
                self._record(CheckpointStored(path, step, size, seconds))
                return [events.CheckpointDrained(seconds)]
            case messages.DrainFailed(path=path, why=why):
                if self.copies.note_failed(reply) and not self._is_ending:
                    self._record(StoringFailed(self._host, path, why))  # at the end: StageLost
            case messages.OtherFailed(path=path, why=why):
                self._record(StoringFailed(self._host, path, why))
            case messages.Flushed(id=number) if number == pending:
                self._request = None
                return self._flushed(reply)
        return []

    def _begin(self, reply: messages.Restored) -> list[events.Event]:
        assert self.paths is not None, "there is a staging directory"
        self._request, self.skipped = None, reply.skipped
        for path in filter(None, (*reply.by_name, reply.path)):
            self.copies.note_stored(path)
        if not self._has_begun:
            self._has_begun = True
            where, stage = self._settings.where, self.paths.stage
            words = self._config.arguments
            changed = tuple(word for word in words if self.paths.word(word) != word)
            copied = (reply.path, reply.size, reply.seconds)
            self._record(StageBegan(self._host, where, stage, changed, *copied))
        if reply.fetched:
            self._record(StageFetched(self._host, reply.fetched, reply.seconds))
        if self._is_refused and self.spread is None:  # with several nodes, the head decides
            self._begin_flush()
            return []
        return self._end_wait()

    @property
    def _may_hold(self) -> bool:
        """Whether something may be in memory."""
        return self._has_begun

    @property
    def _is_ending(self) -> bool:
        """Whether the end of the job waits for the stager."""
        return isinstance(self._wait, EndWait)

    def _cannot_restore(self, why: str, host: str = "") -> list[events.Event]:
        """Begin the next round with a checkpoint on storage, and save there."""
        found = self._refuse(why, host)
        if self.paths is not None:
            self._begin_flush()
        return found

    def _refuse(self, why: str, host: str = "") -> list[events.Event]:
        """Save on storage: at once if nothing is in memory, otherwise from the next round on."""
        if self._is_ending:
            return []  # all is copied to storage anyway
        if not self._is_refused:
            where = self._settings.where
            self._record(StageRefused(host or self._host, where, why, later=self._has_begun))
        self._is_refused = True
        return [] if self._may_hold else self._end_wait(leave=True)

    def _end_wait(self, *, leave: bool = False) -> list[events.Event]:
        """Begin the search that has waited, if any. `leave`: it searches on storage."""
        wait, self._wait = self._wait, None
        if leave:
            self._leave()
            self._remove()
        return [] if wait is None or wait.search is None else wait.search()

    def _flushed(self, reply: messages.Flushed) -> list[events.Event]:
        wait = self._wait
        if isinstance(wait, EndWait):
            self._leave()
            lost = reply.missing + reply.unusable
            if lost:
                self._record(StageLost(self._host, self._settings.where, lost, reply.why))
            return [events.StageFlushed(lost, bool(reply.checkpoint), wait.number)]
        if reply.missing:
            return self._end_wait()  # that is still in memory, where searches look
        self.skipped += tuple(f"{path}: {reply.why}" for path in reply.unusable)
        return self._end_wait(leave=True)

    def _give_up(self, why: str) -> list[events.Event]:
        """End the wait at the end of the job."""
        return self._flushed(self.copies.given_up(self._settings.where, why))

    # Time

    def deadline(self) -> float:
        return min(self._start_at, math.inf if self._wait is None else self._wait.deadline())

    def update(self, now: float) -> list[events.Event]:
        if now >= self._start_at:
            try:
                self._start()
            except OSError as e:
                self._start_at = now + AGAIN
                if not self._is_ending:
                    return self._cannot_drain(f"{ENDS}: {e.strerror}")
        wait = self._wait
        if wait is None:
            return []
        if now >= wait.until:
            return self._give_up("no time was left")
        if wait.needs_notice(now):
            copied = self.copies.current or messages.DrainProgress("", 0, 0)
            progress = (copied.path, copied.done, copied.size, now - wait.since)
            where, is_filling = self._settings.where, self._is_filling_memory
            self._record(StageAwaited(self._host, where, *progress, is_filling))
        return []

    @property
    def _is_filling_memory(self) -> bool:
        """Whether the wait is for what the next round needs in memory, not for storage."""
        return self._is_restoring
