"""The owners of files in a shared directory, for the launcher and for workers of any Python.

Root counts as this user, who is at its mercy anyway. Some file systems give all that this user
makes to somebody else (NFS to nobody, where root is squashed; mounts with one owner for all): what
belongs to that one is this user's, too.
"""

import os


def is_ours(found: os.stat_result, directory: "str | os.PathLike[str]") -> bool:
    """Return whether this user owns a file with this os.stat_result in this directory."""
    return found.st_uid in (0, os.geteuid()) or found.st_uid == owner_of_new(directory)


def owner_of_new(directory: "str | os.PathLike[str]") -> "int | None":
    """Return who owns a file that this user makes in a directory; None if none can be made."""
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
