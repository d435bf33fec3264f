"""Mount a directory on a file system that stalls while FILE exists.

    python stalling.py DIRECTORY MOUNTPOINT FILE

All calls wait, except those that FILE names. Needs root and /dev/fuse. It ends when unmounted.
"""

import errno
import functools
import os
import sys
import time

import mfusepy

SOURCE, MOUNTPOINT, STALLS = sys.argv[1:]


def spared():
    try:
        with open(STALLS) as f:
            return f.read().split()
    except FileNotFoundError:
        return []


def stalls(method):
    """Make a call wait while the file system stalls, and map its path to the directory."""

    @functools.wraps(method)
    def wrapper(self, path, *args):
        while os.path.exists(STALLS) and method.__name__ not in spared():
            time.sleep(0.05)
        return method(self, SOURCE + path, *args)

    return wrapper


class Stalling(mfusepy.Operations):
    use_ns = True

    @stalls
    def access(self, path, amode):
        if not os.access(path, amode):
            raise mfusepy.FuseOSError(errno.EACCES)

    @stalls
    def getattr(self, path, fh=None):
        found = os.lstat(path) if fh is None else os.fstat(fh)
        names = ("mode", "nlink", "uid", "gid", "size")
        fields = {f"st_{name}": getattr(found, f"st_{name}") for name in names}
        times = ("atime", "mtime", "ctime")
        return fields | {f"st_{name}": getattr(found, f"st_{name}_ns") for name in times}

    @stalls
    def readdir(self, path, fh):
        return [".", "..", *os.listdir(path)]

    @stalls
    def readlink(self, path):
        return os.readlink(path)

    @stalls
    def statfs(self, path):
        found = os.statvfs(path)
        return {name: getattr(found, name) for name in dir(found) if name.startswith("f_")}

    @stalls
    def create(self, path, mode, fi=None):
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, mode)

    @stalls
    def open(self, path, flags):
        return os.open(path, flags & ~(os.O_CREAT | os.O_APPEND))

    @stalls
    def read(self, path, size, offset, fh):
        return os.pread(fh, size, offset)

    @stalls
    def write(self, path, data, offset, fh):
        return os.pwrite(fh, data, offset)

    @stalls
    def truncate(self, path, length, fh=None):
        os.truncate(path, length)

    @stalls
    def release(self, path, fh):
        os.close(fh)

    @stalls
    def fsync(self, path, datasync, fh):
        os.fsync(fh)

    @stalls
    def flush(self, path, fh):
        pass

    @stalls
    def mkdir(self, path, mode):
        os.mkdir(path, mode)

    @stalls
    def rmdir(self, path):
        os.rmdir(path)

    @stalls
    def unlink(self, path):
        os.unlink(path)

    @stalls
    def symlink(self, target, source):
        os.symlink(source, target)

    @stalls
    def rename(self, old, new):
        os.rename(old, SOURCE + new)

    @stalls
    def chmod(self, path, mode):
        os.chmod(path, mode)

    @stalls
    def chown(self, path, uid, gid):
        os.chown(path, uid, gid)

    @stalls
    def utimens(self, path, times=None):
        os.utime(path, ns=times)


if __name__ == "__main__":
    mfusepy.FUSE(Stalling(), MOUNTPOINT, nothreads=False, allow_other=True, direct_io=True)
