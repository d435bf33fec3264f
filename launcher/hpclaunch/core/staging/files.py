"""A file in the memory of a node, or a copy of it, such as the one on storage.

Stagers of one node import this, so it needs the standard library only.
"""

from __future__ import annotations

import stat
from typing import NamedTuple, TypeAlias

Identity: TypeAlias = tuple[int, int]  # size, time of the last write (st_mtime_ns)


class StagedFile(NamedTuple):
    """A file, directory or symbolic link in a staging directory, or in a directory with copies of
    it, such as the one on storage. Links are not followed.
    """

    name: str  # relative to that directory
    size: int
    time: int  # st_mtime_ns
    mode: int = 0  # st_mode
    owner: int = 0  # the index of the node whose file the view shows
    target: str = ""  # of a link; relative if it is in the directory
    inode: int = 0

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.mode)

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.mode)

    @property
    def is_link(self) -> bool:
        return stat.S_ISLNK(self.mode)

    @property
    def identity(self) -> Identity:
        """Return what is the same for copies of a file."""
        return self.size, self.time

    @property
    def version(self) -> tuple[int, int, int]:
        """Return what changes when the file is written or replaced. Another hard link has the
        same.
        """
        return self.inode, self.size, self.time
