"""The checkpoints that a launch has in memory. The class here is for one node; `nodes.py` extends
it for several. Methods without a body have nothing to do on one node.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence

from hpclaunch.core.staging.files import StagedFile

from .contents import Contents
from .copying import Between, at_once, copy, hold
from .launch import Launch
from .publishing import draft_beside, place
from .room import room


class Memory:
    """The memory, as the search sees it below `launch.root`."""

    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        self.leads = True  # whether this stager drains checkpoints
        self.term = 0  # in which it leads
        self.led_since = 0  # ns since the epoch; 0: from the start, as with one node
        self.copies_at = 0.0  # no copy of a checkpoint begins before

    @property
    def is_quiet(self) -> bool:
        """Return whether copies have to wait, because workers load what was restored."""
        return time.monotonic() < self.copies_at

    def refresh(self) -> None:
        """Have `launch.root` show what is in memory now. Raises OSError and GivenUpError, also if a
        node does not answer.
        """

    def refresh_soon(self) -> None:
        """Refresh once all nodes answer."""

    def await_workers(self) -> None:
        """Wait until no worker of another node runs, or another stager leads."""

    def replicate(self, complete: Sequence[Contents], incomplete: Iterable[Contents] = ()) -> None:
        """Give the orders that follow from a look that has found these `whole` checkpoints, and
        others that lack something.
        """

    def drop_kept(self, host: str) -> None:
        """Drop what a host without room keeps of other nodes, until the next restore."""

    def delete_rest(self, complete: Sequence[Contents]) -> None:
        """Delete on all nodes what the script has deleted on one. `complete` are the `whole`
        checkpoints of the last look.
        """

    def whole(self, complete: Iterable[Contents]) -> list[Contents]:
        """Leave out checkpoints of which a file was lost with a node or is being written, and those
        that may have files of several saves.
        """
        return list(complete)

    def share(self) -> None:
        """Share the record of this launch with other nodes."""

    def is_here(self, each: StagedFile) -> bool:  # noqa: ARG002 - for several nodes
        """Return whether this node has an item."""
        return True

    def is_old(self, each: StagedFile) -> bool:  # noqa: ARG002
        """Return whether no script has written an item since the last restore on several nodes."""
        return False

    def deleted(self, vanished: set[str]) -> set[str]:
        """Return the keys of those checkpoints that the script has deleted. `vanished` has the keys
        of all that are no longer in memory: others were lost with a node.
        """
        return vanished

    def lack(self, newest: Contents, older: Sequence[Contents] = ()) -> tuple[str, str]:
        """Return why another checkpoint like the newest does not fit once the `older` ones are
        deleted, and on which host; ("", "") if it does. Raises OSError.
        """
        left = room(self.launch.stage)
        free = left.free + sum(each.size for each in older)
        return left._replace(free=free).lack(newest.size, 1), ""

    def hold(self, contents: Contents, held: str, *, in_memory: bool) -> None:
        """Fill `held` with what this node will copy: hard links, so that the script may delete the
        originals; if `in_memory`, copies of this node's own files, so that the script may also
        rewrite them. Raises OSError.
        """
        own = [each for each in contents.items if in_memory and self.is_here(each)]
        copy(own, self.launch.root, held, at_once)
        names = {each.name for each in own}
        others = [each for each in contents.items if each.name not in names]
        hold(others, self.launch.root, held)

    def copy(
        self,
        items: Sequence[StagedFile],
        source: str,
        drafted: str,
        between: Between,
        *,
        essential: frozenset[str] = frozenset(),  # noqa: ARG002 - for several nodes
        in_memory: bool = False,  # noqa: ARG002
    ) -> None:
        """Copy items from the directory `source` into a draft on storage. Raises OSError,
        GivenUpError, and what `between` raises. With several nodes, each copies its own files.
        """
        copy(items, source, drafted, between)

    def delete(self, contents: Contents) -> None:
        """Delete a checkpoint in memory. Raises OSError."""
        stage = self.launch.stage
        folder = os.path.dirname(os.path.join(stage, contents.key))
        before = os.stat(folder)
        with draft_beside(stage) as trash:
            for name in contents.moved:
                place(os.path.join(stage, name), os.path.join(trash, name))
        # A format compares the directory's time with that of files (formats/accelerate.py).
        os.utime(folder, ns=(before.st_atime_ns, before.st_mtime_ns))
