"""Drains: copies of a checkpoint to storage, into a draft that is renamed once it is complete.

Between two pieces of a copy, requests are served, and a newer checkpoint is looked for.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Sequence

from hpclaunch.core.staging.files import StagedFile
from hpclaunch.system.checkpoints.candidates import CheckpointCandidate
from hpclaunch.system.checkpoints.finding import ExaminedCheckpoint, look_at, roots

from . import messages
from .contents import HERE, Contents, is_copied, is_unchanged, names_any, notes
from .copying import THREADS, Between, GivenUpError, RewrittenError, cause, make_parents
from .deletion import Deletion
from .launch import Launch
from .looking import Looking
from .memory import Memory
from .other_files import OtherFiles, set_aside
from .publishing import draft, later, publish, sweep
from .requests import Requests
from .stage_directory import HELD, rmtree

SAY = 1.0  # seconds between two reports of progress
AGAIN = 10.0  # seconds until a checkpoint that could not be drained is tried again
SILENT = 60.0  # seconds in one call after which it is reported that storage does not answer


class Draining:
    """The drains of one stager."""

    def __init__(
        self,
        launch: Launch,
        requests: Requests,
        memory: Memory,
        looking: Looking,
        others: OtherFiles,
        deletion: Deletion,
        answer: Callable[[], None],
    ) -> None:
        """`answer` answers requests that do not wait for the end of a drain."""
        self._launch, self._requests, self._looking = launch, requests, looking
        self._storage, self._record = launch.storage, launch.record
        self._memory, self._others, self._deletion = memory, others, deletion
        self._answer = answer
        self._run = launch.storage_thread.run
        launch.storage_thread.meanwhile = self.meanwhile
        self._held = os.path.join(launch.own, HELD)  # the checkpoint that is being copied
        rmtree(self._held)  # left by a stager that was killed
        self._drained: dict[str, frozenset[tuple[object, ...]]] = {}  # identities, by key
        self.number = 0  # of drains so far
        self.failed: tuple[object, float] = None, 0.0  # its identity, and when to try again
        self._swept_term: int | None = None  # when storage was swept; None: it has to be
        self._is_late = False  # the script deletes or rewrites what is not on storage yet
        self._is_rewritten = False  # the script writes to files in place while they are copied
        self._finishes = False  # the last drain was given up, so the next one is finished
        self._sized: object = None  # the identity of the newest checkpoint, once room was checked
        self._no_room: messages.NoRoom | None = None
        self._say_due = 0.0
        self._unweighed: list[Contents] | None = None  # of a look that no copy has considered yet
        self._paused = 0.0  # seconds of this drain
        self.chosen: int | None = None  # the time of what was restored during this drain
        self._path = ""  # on storage, of what is being drained, or ""
        self._progress_at = 0.0  # the last progress of a copy, here or on another node
        self._silent_since = 0.0  # the last silence that was reported

    @property
    def has_pauses(self) -> bool:
        is_urgent = self._is_late or self._looking.has_ended
        return not is_urgent and self._requests.has_pauses

    def sweep(self) -> None:
        """Remove what killed stagers have left unfinished on storage. Do nothing if that was done
        in this term, and nothing had to stay. Raises OSError.
        """

        def decisive(path: str) -> str:
            where = os.path.dirname(path)
            found = look_at(where, path, self._launch.there.facts(()), self._launch.there.cache)
            if found is None or found.lacks is not None:
                return ""
            return os.path.relpath(found.candidate.decides.path, path)

        def swept() -> bool:
            places = {self._storage, *roots(self._launch.there.where)}
            return sweep(places, decisive, self._launch.name)

        if (term := self._memory.term) != self._swept_term:
            self._swept_term = term if self._run(swept) else None

    def is_on_storage(self, contents: Contents) -> bool:
        """Return whether a checkpoint was drained. Once no worker runs, also check that nobody has
        deleted it on storage, and that no other leading stager has replaced it.
        """
        is_drained = self._drained.get(contents.key) == contents.identity
        if is_drained and self._looking.has_ended:
            return self._run(self._is_still_there, contents)
        return is_drained

    def _is_still_there(self, contents: Contents) -> bool:
        if self._launch.has_several_nodes:
            return contents.is_copied(self._storage)
        return all(os.path.lexists(os.path.join(self._storage, n)) for n in contents.moved)

    def is_waiting(self, contents: Contents) -> bool:
        """Return whether the drain of this has failed, and is tried again only later."""
        failed, again = self.failed
        return failed == contents.identity and time.monotonic() < again

    def note_drained(self, contents: Contents) -> None:
        self._drained[contents.key] = contents.identity
        self.number += 1

    def forget(self, keys: Iterable[str]) -> None:
        """Note that these checkpoints were deleted on storage."""
        for key in keys:
            self._drained.pop(key, None)

    def absent(self, found: Sequence[ExaminedCheckpoint]) -> set[str]:
        keys = {os.path.relpath(f.candidate.path, self._launch.root) for f in found}
        return keys - self._drained.keys()

    def drain(self, contents: Contents, found: Sequence[ExaminedCheckpoint]) -> str:
        """Copy a complete checkpoint, one of those `found`, to storage. Return why that was not
        possible, or "".
        """
        began, step = time.monotonic(), contents.found.candidate.step
        self._paused, self.chosen, self._unweighed = 0.0, None, None
        self._path = path = self._launch.on_storage(contents.key)
        self._progress_at = began
        try:
            if self._is_outdated(contents):
                self._drained[contents.key] = contents.identity
                return ""
            is_new = self._copy(contents, found)
        except GivenUpError as e:
            self._finishes = True
            return str(e)
        except OSError as e:
            why = cause(e)
            is_deleted = isinstance(e, FileNotFoundError)  # by the script, just now
            if not (is_deleted and str(e.filename).startswith(self._launch.own)):
                self.failed = contents.identity, time.monotonic() + AGAIN
                self._swept_term = None  # the draft may be left, if storage is away
                self._requests.send(messages.DrainFailed(path, why))
            return why
        finally:
            self._path = ""
            rmtree(self._held)
        self.note_drained(contents)
        self._finishes = self._is_late = False
        if is_new:
            number = None if step is None else step.value
            seconds = time.monotonic() - began - self._paused
            self._requests.send(messages.Drained(path, number, contents.size, seconds))
        self._report_no_room()
        return ""

    def _copy(self, contents: Contents, found: Sequence[ExaminedCheckpoint]) -> bool:
        """Copy and publish a checkpoint. Return False if it was there already: it was restored, or
        drained by a stager that was killed. Raises OSError and GivenUpError.
        """
        self.sweep()
        is_there = self._run(contents.is_copied, self._storage)
        with draft(self._storage, self._launch.name, self._run) as drafted:
            candidates = [f.candidate for f in found]
            beside = notes(self._launch.root, contents.key, candidates, self.absent(found))
            beside = [
                each
                for each in beside
                if not self._record.has(each)
                and not self._run(is_copied, each, self._storage)
                and not self._replaces_unknown(each, candidates)
            ]
            # Trackers are rewritten in place, so they are copied without pauses.
            self._memory.copy(beside, self._launch.root, drafted, self.meanwhile)
            beside = [each for each in beside if is_unchanged(each, self._launch.root)]
            if not is_there:
                self._refuse_older(contents)
                self._hold(contents)
            self._looking.check(contents)
            if not is_there:
                self._copy_held(contents, drafted)
            self._refuse_older(contents)
            if not is_there and contents.key != HERE:
                self._keep_others(contents)
            for name in (*contents.moved, *(each.name for each in beside)):
                self._run(make_parents, name, self._launch.root, self._storage)
            # Record it before it is published: if this stager is killed in between, the next one
            # knows that the checkpoint is of this launch.
            self._record.add(contents)
            inside = contents.items if contents.key == HERE else ()
            beside = [each for each in beside if not self._has_newer(each)]
            self._record.add_others({each.name for each in (*inside, *beside)})
            self._memory.share()
            self._refuse_older(contents)  # another stager may lead by now
            beside = [each for each in beside if not self._has_newer(each)]
            self._refuse_unchosen(contents)
            new = None if is_there else contents
            self._run(publish, new, beside, drafted, self._storage, self._launch.name)
        self._others.note_copied(beside if is_there else [*inside, *beside])
        return not is_there

    def _replaces_unknown(
        self, each: StagedFile, candidates: Sequence[CheckpointCandidate]
    ) -> bool:
        """Return whether storage has a file of this name that the script does not know, such as the
        log of a lost node or of an earlier launch, but no tracker. The copy of other files gives it
        another name first.
        """
        if each.name in self._record.others or each.is_link:
            return False
        with contextlib.suppress(FileNotFoundError):  # just deleted
            is_tracker = names_any(os.path.join(self._launch.root, each.name), candidates)
            path = os.path.join(self._storage, each.name)
            return not is_tracker and self._run(os.path.lexists, path)
        return False

    def _copy_held(self, contents: Contents, drafted: str) -> None:
        try:
            between, is_rewritten = self.between(contents), self._is_rewritten
            essential = contents.essential
            self._memory.copy(
                contents.items,
                self._held,
                drafted,
                between,
                essential=essential,
                in_memory=is_rewritten,
            )
            if not is_rewritten and not contents.is_unchanged(self._held):
                raise RewrittenError("it is being written again")
        except RewrittenError:
            self._is_rewritten = self._is_late = True
            raise

    def _keep_others(self, contents: Contents) -> None:
        """Rename checkpoints of an earlier launch that have the names of a new one: only the newest
        was restored, so the script cannot know that the names of the others are in use.
        """
        own = {
            *self._record.others,
            *(n for names in self._record.moved.values() for n in names),
        }
        for name in contents.moved:
            if name not in own:
                self._run(set_aside, os.path.join(self._storage, name))

    def _is_outdated(self, contents: Contents) -> bool:
        """Return whether this one was restored, and storage has a newer one of its name, which the
        job has saved since: nodes that had that one are lost.
        """
        decisive = contents.items[-1]
        return self._memory.is_old(decisive) and self._has_newer(decisive)

    def _refuse_older(self, contents: Contents) -> None:
        """Raise GivenUpError if storage has a newer one of this name, and report that: perhaps only
        the clocks of the nodes differ.
        """
        if self._has_newer(contents.items[-1]):
            self.failed = contents.identity, time.monotonic() + AGAIN
            why = "storage has a newer one"
            self._requests.send(messages.DrainFailed(self._launch.on_storage(contents.key), why))
            raise GivenUpError(why)

    def _has_newer(self, each: StagedFile) -> bool:
        """Return whether storage has a later file of this name: from another stager, which leads by
        now.
        """
        return self._launch.has_several_nodes and self._run(later, each, self._storage) is not None

    def _refuse_unchosen(self, contents: Contents) -> None:
        """Raise GivenUpError if the job resumes from an older checkpoint than this."""
        if self.chosen is not None and self.chosen < contents.time:
            raise GivenUpError("the job resumes from an older one")

    def _hold(self, contents: Contents) -> None:
        """Keep the files while they are copied, by hard links. If the script has rewritten files in
        place while the last checkpoint was copied, and there is room, by a copy in memory.
        """
        if self._is_rewritten and self._memory.lack(contents)[0]:
            self._is_rewritten = False
        self._memory.hold(contents, self._held, in_memory=self._is_rewritten)

    def between(self, contents: Contents | None) -> Between:
        """Return what to do between two pieces of a copy. `contents`: the checkpoint; None: the
        copy is of other files, and is given up once there is a new checkpoint.
        """
        last = -1

        def between(done: int, took: float) -> int:
            nonlocal last
            now = time.monotonic()
            if done != last:
                last, self._progress_at = done, now
            if contents is not None and now >= self._say_due:
                self._say_due = now + SAY
                path = self._launch.on_storage(contents.key)
                self._requests.send(messages.DrainProgress(path, done, contents.size))
            self._serve(took if self.has_pauses else 0.0)
            if contents is not None:
                self._refuse_unchosen(contents)
            if self._looking.is_due:
                self._look()
            complete, self._unweighed = self._unweighed, None
            if complete is not None and not self._looking.has_ended:
                self._check_worth(contents, done, complete)
            return 1 if self.has_pauses else THREADS

        return between

    def meanwhile(self, _done: int, _took: float) -> int:
        """Do what needs only memory, while storage may hang: this is a `Between` that makes no
        pauses and never gives up.
        """
        self._serve(0.0)
        if self._looking.is_due:
            self._look()
        return THREADS

    def _serve(self, seconds: float) -> None:
        began = time.monotonic()
        self._report_silence(began)
        self._requests.serve(seconds)
        asked = len(self._requests.pending)
        self._answer()
        now = time.monotonic()
        if len(self._requests.pending) < asked:
            self._progress_at = now  # an answer may take long, and is no silence of storage
        self._paused += now - began

    def _report_silence(self, now: float) -> None:
        """Report once that storage has not answered for long, here or on another node."""
        since = max(self._progress_at, self._launch.storage_thread.began)
        if now > since + SILENT and since > self._silent_since:
            self._silent_since = since
            silent = f"storage has not answered for {SILENT:.0f} s"
            self._requests.send(
                messages.DrainFailed(self._path, silent)
                if self._path
                else messages.OtherFailed(self._launch.storage, silent)
            )

    def _look(self) -> None:
        """Look for new checkpoints, have other nodes copy them, and make room in memory."""
        if (found := self._looking.look()) is not None:
            self._unweighed = complete = self.consider(found)
            self._deletion.make_room(complete, self.is_on_storage)

    def consider(self, found: Sequence[ExaminedCheckpoint]) -> list[Contents]:
        """Check the room for the next checkpoint, and have other nodes copy those that a look has
        found. Return the complete ones.
        """
        complete = self._looking.complete(found)
        self._check_room(complete)
        self._memory.replicate(complete, self._looking.incomplete(found, complete))
        return complete

    def _check_worth(
        self, contents: Contents | None, done: int, complete: Sequence[Contents]
    ) -> None:
        """Raise GivenUpError if a newer checkpoint should be drained instead: `complete` are those
        of the last look. At least every other drain is finished, however often the script saves.
        """
        newest = complete[0] if complete else None
        is_newest = newest is None or self.is_on_storage(newest)
        if contents is None:
            if not is_newest:
                raise GivenUpError("there is a new checkpoint")
            return
        if newest is not None and newest.identity == contents.identity:
            return
        if not is_newest and not self._finishes and 2 * done < contents.size:
            raise GivenUpError("there is a newer checkpoint")
        is_deleted = all(each.identity != contents.identity for each in complete)
        if is_deleted and done < contents.size and self._memory.lack(contents)[0]:
            self._is_late = True
            raise GivenUpError("the script has deleted it, and its memory is needed")

    def _check_room(self, complete: Sequence[Contents]) -> None:
        """Check once for each new checkpoint that the next one will fit, if those that are on
        storage make room for it. Do this before the next save begins, which takes room itself.
        """
        if not complete or complete[0].identity == self._sized:
            return
        newest = complete[0]
        self._sized = newest.identity
        with contextlib.suppress(OSError):
            older = [c for c in complete[1:] if c.key != HERE and self.is_on_storage(c)]
            why, host = self._memory.lack(newest, older)
            self._no_room = messages.NoRoom(why, host) if why else None
            self._is_late |= bool(why)
            if self.is_on_storage(newest):
                self._report_no_room()

    def _report_no_room(self) -> None:
        """Report that there is no room. Call this once the newest checkpoint is on storage."""
        if self._no_room is not None:
            self._requests.send(self._no_room)
            self._memory.drop_kept(self._no_room.host)
            self._no_room = None
