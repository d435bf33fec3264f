"""The files of a script that belong to no checkpoint: logs, configurations, final models, links.

They are copied after each checkpoint, so that few of them are lost with a node, except what looks
like saved tensors: only after the script has ended is it certain that nobody is writing that.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator, Sequence

from hpclaunch.system.checkpoints.candidates import CheckpointCandidate
from hpclaunch.system.checkpoints.finding import ExaminedCheckpoint, candidates, look_at
from hpclaunch.system.checkpoints.formats import UNKNOWN
from hpclaunch.system.checkpoints.formats.safetensors import SUFFIX
from hpclaunch.system.checkpoints.formats.sealed import SAVED
from hpclaunch.system.checkpoints.formats.torch_save import is_archive
from hpclaunch.system.checkpoints.service import CheckpointService

from .contents import HERE, NOTE, Item, is_draft, item, names_any, target_of, tree
from .copying import Between, at_once, copy
from .publishing import draft, is_copied, place
from .record import Record

RESTORED, MOST_RESTORED = 64 << 20, 1000  # bytes and number of the files that are restored


class OtherFiles:
    """The files below both roots that belong to no checkpoint."""

    def __init__(self, stage: str, storage: str, here: CheckpointService, record: Record) -> None:
        self._stage, self._storage, self._here, self._record = stage, storage, here, record
        self._copied: dict[str, tuple[int, ...]] = {}  # identities, by path

    def restore(self) -> None:
        """Copy small files to the staging directory, since the script may append to them. Call this
        before the script runs.
        """
        left, names = RESTORED, set()
        with contextlib.suppress(OSError), draft(os.path.dirname(self._stage)) as drafted:
            where = self._storage + self._here.where.removeprefix(self._stage)
            known = [*candidates(where, self._here.facts(()))]
            skipped = frozenset(os.path.relpath(c.path, self._storage) for c in known)
            for each in self._below(self._storage, skipped):
                if os.path.lexists(os.path.join(self._stage, each.name)):
                    if each.stat.st_size <= NOTE:  # restored beside the checkpoint
                        names.add(each.name)
                    continue
                if not each.is_file or each.stat.st_size > left:
                    continue
                with contextlib.suppress(OSError):  # unreadable: it stays as it is on storage
                    copy([each], self._storage, drafted, self._storage, at_once)
                    place(os.path.join(drafted, each.name), os.path.join(self._stage, each.name))
                    left -= each.stat.st_size
                    self._copied[each.name] = item(self._stage, each.name).identity
                    names.add(each.name)
                if len(names) == MOST_RESTORED:
                    break
        self._record.add_others(names)

    def drain(
        self, found: Sequence[ExaminedCheckpoint], between: Between, absent: Collection[str]
    ) -> None:
        """Copy what has changed while the script runs. Raises what `between` raises."""
        skipped = {self._key(f) for f in found}
        facts = self._here.facts(())
        items = [
            each
            for each in self._beside(found, skipped)
            if not each.name.endswith(SAVED)
            and not facts.excludes(
                os.path.basename(each.name), os.path.join(self._stage, each.name)
            )
        ]
        self._copy(items, found, between, absent)

    def flush(
        self, found: Sequence[ExaminedCheckpoint], between: Between, absent: Collection[str]
    ) -> list[tuple[str, str]]:
        """Copy what has changed, except checkpoints: those that are complete were copied before,
        and those that a kill has left half written stay behind. Call this once no worker runs.
        Return the path and the reason of each that could not be copied.
        """
        skipped = {self._key(f) for f in found if f.lacks is None or self._is_half(f)}
        try:
            items = self._beside(found, skipped)
        except OSError as e:
            return [(os.path.relpath(e.filename, self._stage), e.strerror or str(e))]
        return self._copy(items, found, between, absent)

    def _below(self, root: str, skipped: frozenset[str]) -> Iterator[Item]:
        for each in tree(root, HERE, skipped - {HERE}):
            if not each.is_folder and not any(map(is_draft, each.name.split(os.sep))):
                yield each

    def _beside(self, found: Sequence[ExaminedCheckpoint], skipped: Collection[str]) -> list[Item]:
        """Return the files that belong to no checkpoint, also not to one that lies directly in the
        root. As long as that is not complete, storage keeps all of the files of the one before.
        """
        moved = (names for key, names in self._record.moved.items() if key != HERE)
        drained = {name for names in moved for name in names}  # if it is not complete now, it stays
        drained -= {self._key(f) for f in found if f.quiet}
        items = self._below(self._stage, frozenset({*skipped, *drained}))
        root = next((f for f in found if self._key(f) == HERE), None)
        if root is not None and root.quiet:  # an exported model beside checkpoints
            return list(items)
        names = set(self._record.moved.get(HERE, ()))
        if root is not None:
            paths = (root.candidate.decides.path, *(part.entry.path for part in root.parts))
            names.update(os.path.relpath(path, self._stage) for path in paths)
        is_half = bool(names) and (root is None or root.lacks is not None)
        saved = SAVED if is_half else ()
        return [each for each in items if each.name not in names and not each.name.endswith(saved)]

    def _key(self, found: ExaminedCheckpoint) -> str:
        return os.path.relpath(found.candidate.path, self._stage)

    def _is_half(self, found: ExaminedCheckpoint) -> bool:
        """Return whether a checkpoint that lacks something is one that was not saved to its end. It
        may also be something else that only looks like a checkpoint.
        """
        candidate, lacks = found.candidate, found.lacks
        if candidate.export or candidate.format is UNKNOWN:
            return False
        if found.quiet:  # the search has not examined it
            again = look_at(
                self._here.where, candidate.path, self._here.facts(()), self._here.memory
            )
            lacks = again.lacks if again else None
        entry = candidate.place.entry
        is_foreign = (
            not entry.is_folder
            and entry.size > 0
            and not entry.name.endswith(SUFFIX)
            and not is_archive(entry.path, entry.identity)
        )
        return lacks is not None and not is_foreign

    def _copy(
        self,
        items: Sequence[Item],
        found: Sequence[ExaminedCheckpoint],
        between: Between,
        absent: Collection[str],
    ) -> list[tuple[str, str]]:
        missing = [f.candidate for f in found if self._key(f) in absent]
        new = [each for each in items if self._copied.get(each.name) != each.identity]
        failed: list[tuple[str, str]] = []
        names: set[str] = set()
        if not new:
            return failed
        try:
            with draft(self._storage) as drafted:
                for each in sorted(new, key=lambda each: each.is_link):
                    try:
                        if self._copy_one(each, drafted, between, missing):
                            names.add(each.name)
                    except OSError as e:
                        if os.path.lexists(os.path.join(self._stage, each.name)):
                            failed.append((each.name, e.strerror or str(e)))
        except OSError as e:  # no draft can be made
            failed = [(each.name, e.strerror or str(e)) for each in new]
        finally:
            self._record.add_others(names)
        return failed

    def _copy_one(
        self, each: Item, drafted: str, between: Between, missing: Sequence[CheckpointCandidate]
    ) -> bool:
        """Copy a file. Return whether it is on storage now: a link has to wait for its target, and
        a tracker for the checkpoint that it names.
        """
        path, final = (os.path.join(root, each.name) for root in (self._stage, self._storage))
        if each.is_link:
            target = target_of(self._stage, each.name)
            is_inside = not target.startswith(os.pardir)
            if is_inside and not os.path.lexists(os.path.join(self._storage, target)):
                return False
        elif not each.is_file:
            return False  # a socket, for example
        elif each.stat.st_size <= NOTE and names_any(path, missing):
            return False
        if is_copied(each, self._storage):
            self._copied[each.name] = each.identity
            return True
        if os.path.lexists(final) and not self._is_own(each.name):
            _keep(final)
        copy([each], self._stage, drafted, self._stage, between)
        place(os.path.join(drafted, each.name), final)
        self._copied[each.name] = each.identity
        return True

    def _is_own(self, name: str) -> bool:
        """Return whether a file on storage may be replaced: it was written by this launch, or
        restored, or is a model, which a script replaces as a whole.
        """
        return name in self._record.others or name.endswith(SAVED)


def _keep(path: str) -> None:
    """Rename a file of an earlier launch that was too large to be restored, so that no line of a
    log is lost.
    """
    number = 1
    while os.path.lexists(kept := f"{path}.~{number}~"):
        number += 1
    if not os.path.islink(path):
        os.rename(path, kept)
