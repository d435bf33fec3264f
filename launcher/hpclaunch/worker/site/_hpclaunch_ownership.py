"""The owners of files in a shared directory, for the launcher and for workers of any Python.

Files of root count as this user's, since root can change everything anyway. On some file systems,
the files that this user makes belong to another user: to nobody on NFS with root squashing, or to
the owner of the mount. Files of that user count as this user's, too.
"""

import os


def is_ours(found: os.stat_result, directory: "str | os.PathLike[str]") -> bool:
    """Return whether this user owns a file with this os.stat_result in this directory."""
    return found.st_uid in (0, os.geteuid()) or found.st_uid == owner_of_new(directory)


def owner_of_new(directory: "str | os.PathLike[str]") -> "int | None":
    """Return the owner of a file that this user makes in a directory; None if that fails."""
    probe = os.path.join(directory, f".hpclaunch-{os.urandom(8).hex()}")
    try:
        fd = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError:
        return None
    try:
        return os.fstat(fd).st_uid
    finally:
        os.close(fd)
        os.unlink(probe)
