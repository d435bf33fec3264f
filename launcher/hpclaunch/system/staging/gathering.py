"""The restore on several nodes: one checkpoint is chosen, and each node of the next round gets it
into its staging directory, so that scripts find there what they would find on storage.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from hpclaunch.core.staging.choice import choice, mixtures, outdated
from hpclaunch.core.staging.copies import Transfer, restoring
from hpclaunch.core.staging.generations import LastRestore, Manifest, last_restore, manifest
from hpclaunch.system.checkpoints.candidates import CheckpointCandidate
from hpclaunch.system.checkpoints.finding import ExaminedCheckpoint

from .contents import HERE, Contents, file_at, is_part
from .copying import Between, GivenUpError, LostError, cause, reason
from .draining import Draining
from .launch import Launch
from .looking import Looking
from .memory import Memory
from .messages import Refused, Restore, Restored
from .node import DAMAGED
from .nodes import PATIENCE, Nodes
from .orders import RecordRestore
from .other_files import OtherFiles
from .requests import Requests
from .restoring import fixed_names, restore, restore_older
from .trackers import renamed

BRIEF = 10.0  # seconds to wait for what storage has, beside the checkpoint to resume from
TRIES = 3  # of a restore and of a wave of copies, since a source may be lost meanwhile


class DamagedError(LostError):
    """A copy has changed in memory since it arrived, and is not used any more."""


class Gathering:
    """The restores on several nodes."""

    def __init__(
        self,
        launch: Launch,
        memory: Memory,
        looking: Looking,
        draining: Draining,
        others: OtherFiles,
        requests: Requests,
    ) -> None:
        assert isinstance(memory, Nodes), "there are several"
        self._launch, self._nodes, self._looking = launch, memory, looking
        self._draining, self._others, self._requests = draining, others, requests

    def run(self, request: Restore) -> Restored | Refused:
        """Let all nodes have the newest checkpoint."""
        damaged = set[str]()  # copies
        try:
            for _ in range(1, TRIES):
                try:
                    return self._run(request, damaged)
                except DamagedError as e:
                    damaged.add(str(e))
                except LostError:
                    pass
            return self._run(request, damaged)  # with what is left
        except GivenUpError as e:
            return Refused(request.id, str(e), e.host)
        except OSError as e:
            return Refused(request.id, reason(e))

    def _run(self, request: Restore, damaged: Collection[str]) -> Restored | Refused:
        began, nodes = time.monotonic(), self._nodes
        nodes.refresh_soon()
        examined = self._looking.found()
        complete = list(self._looking.candidates(examined))
        nodes.delete_rest(nodes.whole(complete))
        found, fragments = nodes.manifests(complete)
        holdings, path, has_lost_node = nodes.holdings, "", self._has_lost_node()
        chosen, skipped = self._chosen(found, request)
        mixed = mixtures(found, holdings)
        whole = [each for each in found if each not in mixed]
        self._draining.chosen = 0 if chosen is None else chosen.time
        if chosen is not None:
            fetched = self._gather(chosen, request)
            is_away = bool(skipped)  # storage does not answer
            own = [] if is_away else self._from_storage(chosen, whole, request)
            restored = [chosen, *own, *self._older([chosen, *own], whole, request)]
        else:
            reply, copied = restore(
                self._launch, self._requests, self._draining, self._others, request
            )
            if isinstance(reply, Refused):
                return reply
            path, skipped = reply.path, reply.skipped
            own = self._mark(copied)
            restored = [*own]
            chosen = restored[0] if restored else None
            fetched = self._gather(chosen, request)
        for each in restored[1:]:
            try:
                fetched += self._gather(each, request)
            except (OSError, GivenUpError):  # the newest is there, which is enough
                restored.remove(each)
                if each in own:  # the ranks of a script should find the same on all nodes
                    self._delete(dict.fromkeys(nodes.inventories, each.own))
                    nodes.refresh_soon()
        lost = fragments if has_lost_node else ()
        removed = outdated(restored, found, holdings, request.nodes, lost)
        if has_lost_node:
            usable = [*whole, *restored]
            trackers = self._rename_trackers(examined, usable, chosen, request)
            removed = {node: names - trackers for node, names in removed.items()}
        fetched += self._fetch_others(request)
        if has_lost_node:
            self._forget_lost(restored)
        self._complete(restored, removed, request)
        size = sum(f.size for f in chosen.needed) if chosen else 0
        seconds = time.monotonic() - began
        skipped = (*sorted(damaged), *skipped)
        return Restored(request.id, path, size, seconds, skipped, fetched)

    def collect(self, damaged: dict[Manifest, str]) -> tuple[list[str], str]:
        """Fetch the newest checkpoint to this node if only buddies still have it, so that the flush
        can copy it, and delete what is left of a later save with its names: that would hide it. A
        tracker that names one that was lost with a node would hide it on storage. Return the paths
        that are missing, and why. If the copy of a checkpoint is damaged, add that to `damaged`,
        and fetch another copy or the next older checkpoint. Raises OSError and GivenUpError if a
        node does not answer.
        """
        self._nodes.refresh_soon()
        request = Restore(0, (), (self._nodes.index,))
        examined = self._looking.found()
        found, _ = self._nodes.manifests(self._looking.candidates(examined))
        chosen, _ = self._chosen(found, request)
        mixed = mixtures(found, self._nodes.holdings)
        usable = [each for each in found if each not in mixed]
        if chosen is not None and all(m.generation != chosen.generation for m in found):
            try:
                self._gather(chosen, request)
                names = {
                    h.node: {f.name for f in chosen.files if f.name in chosen.own and not h.has(f)}
                    for h in self._nodes.holdings
                }
                self._delete(names)
            except DamagedError as e:
                damaged[chosen] = str(e)
                return self.collect(damaged)
            except (OSError, GivenUpError) as e:
                return [self._launch.on_storage(chosen.key)], reason(e)
            usable.append(chosen)
        if self._has_lost_node():
            self._rename_trackers(examined, usable, chosen, request)
        return [], ""

    def _chosen(
        self, found: Sequence[Manifest], request: Restore
    ) -> tuple[Manifest | None, tuple[str, ...]]:
        """Return the newest generation in memory, unless storage has a newer one. If storage does
        not answer, memory counts, and what storage may have is returned as skipped.
        """
        storage = self._launch.storage
        avoid = {os.path.relpath(path, storage) for path in request.avoid}
        newest = choice(found, self._nodes.holdings, avoid=avoid)
        recorded = 0 if avoid else self._launch.record.newest
        if newest is None or newest.time >= recorded > 0:
            return newest, ()  # storage has no newer one, so do not wait for it
        try:
            run, meanwhile = self._launch.storage_thread.run, self._patient(PATIENCE)
            stored = run(self._launch.newest_on_storage, request.avoid, meanwhile=meanwhile)
        except OSError as e:
            why = cause(e)
            return newest, (f"{os.path.join(storage, '*')}: {why}, and may have a newer one",)
        return (newest if stored is None or stored.time <= newest.time else None), ()

    def _older(
        self, restored: Sequence[Manifest], whole: Sequence[Manifest], request: Restore
    ) -> list[Manifest]:
        """Return the older checkpoints in memory that scripts may look for by a fixed name, without
        those of which a later one is `restored`.
        """
        is_fixed_name, on_storage = fixed_names(*(m.key for m in restored)), self._launch.on_storage
        usable = [m for m in whole if m.key != HERE and on_storage(m.key) not in request.avoid]
        return [m for m in usable if m.generation < restored[0].generation and is_fixed_name(m.key)]

    def _from_storage(
        self, chosen: Manifest, whole: Sequence[Manifest], request: Restore
    ) -> list[Manifest]:
        """Copy to this node the checkpoints that scripts may look for by a fixed name, and that
        this launch has put on storage, if no node has a complete one. If a node is lost, the others
        may have older ones. Do without them if storage does not answer.
        """
        launch, times = self._launch, {each.key: each.time for each in whole}
        keys = launch.record.moved.keys() - launch.record.deleted.keys() - {HERE}
        in_memory = () if self._has_lost_node() else times.keys()
        if not any(map(fixed_names(chosen.key, *in_memory), keys)):
            return []
        is_fixed_name = fixed_names(chosen.key)

        def is_wanted(candidate: CheckpointCandidate) -> bool:
            key = os.path.relpath(candidate.path, launch.storage)
            is_newer = times.get(key, 0) < candidate.time < chosen.time
            is_usable = key in keys and candidate.path not in request.avoid
            return is_fixed_name(key) and is_newer and is_usable

        def stored() -> list[ExaminedCheckpoint]:
            return list(launch.there.examine((), is_wanted))

        try:
            older = launch.storage_thread.run(stored, meanwhile=self._patient(BRIEF))
        except OSError:
            return []
        size = sum(file.size for file in chosen.needed)
        return self._mark(restore_older(launch, self._requests, self._draining, older, size))

    def _patient(self, seconds: float) -> Between:
        """Return what to do while storage is asked, for at most so long."""
        until = time.monotonic() + seconds

        def meanwhile(done: int, took: float) -> int:
            if time.monotonic() >= until or self._requests.has_flush:
                raise TimeoutError(errno.ETIMEDOUT, f"storage has not answered for {seconds:g} s")
            return self._requests.meanwhile(done, took)

        return meanwhile

    def _mark(self, restored: Sequence[Contents]) -> list[Manifest]:
        """Mark what was restored on this node as such. Return the manifests."""
        self._nodes.refresh_soon()
        own = list(map(self._own, restored))
        self._nodes.own.mark(file for each in own for file in each.files)
        return own

    def _own(self, contents: Contents) -> Manifest:
        """Return the manifest of a checkpoint that was restored on this node."""
        owner = self._nodes.index
        files = [each._replace(owner=owner) for each in contents.items if not each.is_folder]
        return manifest(contents.key, files, contents.decisive, contents.essential, contents.moved)

    def _gather(self, chosen: Manifest | None, request: Restore) -> int:
        """Have the nodes fetch what they lack. Return the bytes."""
        nodes, fetched, failures = self._nodes, 0, 0
        for node in request.nodes if chosen is None else ():
            new = nodes.inventories.get(node)
            if new is not None and not new.restore.number and (why := new.free.lack_of_any()):
                raise GivenUpError(why, nodes.hosts.get(node, ""))
        while chosen and (transfers := restoring(chosen, nodes.holdings, request.nodes)):
            lacking: dict[int, int] = defaultdict(int)
            for each in transfers:
                lacking[each.node] += each.file.size
            for node, size in lacking.items():
                found = nodes.inventories[node]
                # Before its first round, a node needs as much again for the next save.
                if why := found.free.lack(size, 1 if found.restore.number else 2):
                    raise GivenUpError(why, nodes.hosts.get(node, ""))
            nodes.cancel_keeping()
            failed = nodes.fetch(transfers)
            failures = failures + 1 if failed else 0
            for node, why_not in failed.items():
                if isinstance(why_not, OSError) and why_not.errno == DAMAGED:
                    name = why_not.filename
                    named = (t.source for t in transfers if (t.node, t.file.name) == (node, name))
                    host = nodes.hosts.get(next(named, node), "a node")
                    raise DamagedError(f"{name} in the memory of {host}: {cause(why_not)}")
                if node in nodes and failures >= TRIES:
                    raise GivenUpError(cause(why_not), nodes.hosts.get(node, ""))
            done = (t for t in transfers if t.node not in failed and t.source != t.node)
            fetched += sum(each.file.size for each in done)
            nodes.refresh_soon()
        needed = chosen.needed if chosen else []
        if not all(h.has(f) for h in nodes.holdings if h.node in request.nodes for f in needed):
            raise LostError("a node that had files of the checkpoint is lost")
        return fetched

    def _fetch_others(self, request: Restore) -> int:
        """Have the nodes fetch small files that belong to no checkpoint, if they have none of that
        name: scripts append to logs.
        """
        nodes, transfers = self._nodes, list[Transfer]()
        for each in self._others.small(self._looking.found()):
            with contextlib.suppress(OSError, GivenUpError):  # it is just being deleted
                file = nodes.staged(each)
                lacking = (h.node for h in nodes.holdings if file.name not in h.files)
                transfers += (
                    Transfer(node, file, file.owner) for node in lacking if node in request.nodes
                )
        nodes.fetch(transfers)  # a log that cannot be fetched is no reason to stop
        return sum(each.file.size for each in transfers)

    def _rename_trackers(
        self,
        examined: Sequence[ExaminedCheckpoint],
        usable: Sequence[Manifest],
        chosen: Manifest | None,
        request: Restore,
    ) -> set[str]:
        """Have the trackers and links that name a checkpoint that is newer than the chosen one, and
        not `usable` any more, name the chosen one. Remove them if none is chosen. Return their
        names.
        """
        nodes, root, key = self._nodes, self._launch.root, "" if chosen is None else chosen.key
        time = 0 if chosen is None else chosen.time
        newer = [e.candidate for e in examined if e.candidate.time > time]
        paths = {name for each in usable for name in each.moved}
        lost = [c for c in newer if os.path.relpath(c.path, root) not in paths]
        texts = dict(renamed(root, lost, key))
        if not texts:
            return set()
        links = {name for name in texts if os.path.islink(os.path.join(root, name))}
        self._delete(dict.fromkeys(nodes.inventories, texts.keys()))
        transfers = list[Transfer]()
        others = [node for node in request.nodes if node != nodes.index]
        for name, text in ((name, text) for name, text in texts.items() if text):
            path = os.path.join(self._launch.stage, name)
            with contextlib.suppress(OSError):  # memory is full: better no tracker than no restore
                if name in links:
                    os.symlink(text, path)
                else:
                    with open(path, "x", encoding="utf-8") as file:
                        file.write(text)
                new = file_at(self._launch.stage, name)._replace(owner=nodes.index)
                transfers += (Transfer(node, new, nodes.index) for node in others)
        nodes.fetch(transfers)
        nodes.refresh_soon()
        return {*texts}

    def _has_lost_node(self) -> bool:
        """Return whether a node of the last round is lost, with what only it had."""
        holdings = self._nodes.holdings
        last = last_restore(holdings)
        return not last.nodes <= {h.node for h in holdings if h.restore == last}

    def _delete(self, names: Mapping[int, Collection[str]]) -> None:
        """Delete files in memory; their names are by node."""
        nodes = self._nodes
        for node, found in nodes.inventories.items():
            nodes.delete_at({node: [e for e in found.entries if e.name in names.get(node, ())]})

    def _forget_lost(self, restored: Sequence[Manifest]) -> None:
        """Forget small files of which storage has a later version than any node, such as the log of
        a lost node. So storage keeps them under another name when the script writes new ones.
        """
        record, newest = self._launch.record, dict[str, int]()
        for found in self._nodes.inventories.values():
            for each in found.entries:
                newest[each.name] = max(each.time, newest.get(each.name, 0))
        staying = {name for names in record.moved.values() for name in names}
        staying |= {file.name for each in restored for file in each.files}  # with trackers
        record.forget_others(
            [
                name
                for name, version in record.others.items()
                if version and newest.get(name, 0) < version[-1] and not is_part(name, staying)
            ]
        )

    def _complete(
        self,
        restored: Sequence[Manifest],
        outdated: Mapping[int, frozenset[str]],
        request: Restore,
    ) -> None:
        """Remove what would mislead a search on one node, and record the restore as complete."""
        nodes = self._nodes
        self._delete(outdated)
        number = 1 + last_restore(nodes.holdings).number
        generation = restored[0].generation if restored else ""
        nodes.restored |= {path for each in restored for path in each.moved} - {HERE}
        self._launch.record.forget_deleted({each.key for each in restored})
        nodes.share()  # with nodes that have just joined, of which one may lead next
        order = RecordRestore(LastRestore(number, frozenset(request.nodes), generation))
        failed = nodes.wait({n: nodes[n].ask(order) for n in nodes.inventories if n in nodes})
        for node, why in failed.items():
            if node in nodes:
                raise LostError(reason(why), nodes.hosts.get(node, ""))  # it may be lost
