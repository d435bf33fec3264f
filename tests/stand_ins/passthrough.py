"""A FUSE file system that shows a directory, and in which any call can take longer.

Needs /dev/fuse. Files are read and written as the user who mounts it.
"""

import errno
import functools
import os

import mfusepy


def delayed(method):
    """Wait as long as `delay` does, then call the method with the path in the directory."""

    @functools.wraps(method)
    def wrapper(self, path, *args):
        self.delay(method.__name__, args)
        return method(self, self.source + path, *args)

    return wrapper


class Passthrough(mfusepy.Operations):
    """The calls of the file system, each on the same file in the directory `source`."""

    use_ns = True

    def __init__(self, source):
        self.source = source

    def delay(self, call, args):
        """Wait before this call. `args` are its arguments after the path."""

    @delayed
    def access(self, path, amode):
        if not os.access(path, amode):
            raise mfusepy.FuseOSError(errno.EACCES)

    @delayed
    def getattr(self, path, fh=None):
        found = os.lstat(path) if fh is None else os.fstat(fh)
        names = ("mode", "nlink", "uid", "gid", "size")
        fields = {f"st_{name}": getattr(found, f"st_{name}") for name in names}
        times = ("atime", "mtime", "ctime")
        return fields | {f"st_{name}": getattr(found, f"st_{name}_ns") for name in times}

    @delayed
    def readdir(self, path, fh):
        return [".", "..", *os.listdir(path)]

    @delayed
    def readlink(self, path):
        return os.readlink(path)

    @delayed
    def statfs(self, path):
        found = os.statvfs(path)
        return {name: getattr(found, name) for name in dir(found) if name.startswith("f_")}

    @delayed
    def create(self, path, mode, fi=None):
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, mode)

    @delayed
    def open(self, path, flags):
        return os.open(path, flags & ~(os.O_CREAT | os.O_APPEND))

    @delayed
    def read(self, path, size, offset, fh):
        return os.pread(fh, size, offset)

    @delayed
    def write(self, path, data, offset, fh):
        return os.pwrite(fh, data, offset)

    @delayed
    def truncate(self, path, length, fh=None):
        os.truncate(path, length)

    @delayed
    def release(self, path, fh):
        os.close(fh)

    @delayed
    def fsync(self, path, datasync, fh):
        os.fsync(fh)

    @delayed
    def flush(self, path, fh):
        pass

    @delayed
    def mkdir(self, path, mode):
        os.mkdir(path, mode)

    @delayed
    def rmdir(self, path):
        os.rmdir(path)

    @delayed
    def unlink(self, path):
        os.unlink(path)

    @delayed
    def symlink(self, target, source):
        os.symlink(source, target)

    @delayed
    def rename(self, old, new):
        os.rename(old, self.source + new)

    @delayed
    def chmod(self, path, mode):
        os.chmod(path, mode)

    @delayed
    def chown(self, path, uid, gid):
        os.chown(path, uid, gid)

    @delayed
    def utimens(self, path, times=None):
        os.utime(path, ns=times)

    def mount(self, mountpoint, **options):
        """Serve the calls until the file system is unmounted."""
        mfusepy.FUSE(self, mountpoint, nothreads=False, allow_other=True, direct_io=True, **options)
