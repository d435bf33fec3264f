"""What Python runs before a script, watched in the template: sitecustomize and usercustomize.

Both may add to sys.path, put hooks into imports, or set variables, and workers forked from the
template have that from it. Two things cannot be had from it. What was opened or started while they
ran would be shared by the workers; and what they read from a variable that differs from worker to
worker was the template's. The template looks for both before it is ready.

Imports nothing: what is imported here would be there too early for them.
"""

import os
import sys

# The files of os.environ's own code.
_CORE = {f.__code__.co_filename for f in (os.getenv, type(os.environ).get, type(os.environ).update)}


_asked = {}  # type: ignore[var-annotated]  # name of a variable: the file of whoever asked first
_listed = {}  # type: ignore[var-annotated]  # name of a variable: the file of whoever listed all


def _reader(frame):
    """The file of whoever asks os.environ for something."""
    while frame.f_back is not None and frame.f_code.co_filename in _CORE:
        frame = frame.f_back
    return frame.f_code.co_filename


class Environ(type(os.environ)):  # type: ignore[misc]
    """os.environ while the template loads; notes which variables are asked for, and by whom.

    Who lists all of them, to find those with a prefix of its own or to hand them on, may read each
    once: tqdm does, and torch imports it.
    """

    def __iter__(self):
        reader = _reader(sys._getframe(1))
        for name in super().__iter__():
            _listed[name] = reader
            yield name

    def __getitem__(self, name):
        if name in _listed or name not in _asked:
            reader = _reader(sys._getframe(1))
            if _listed.pop(name, None) != reader:
                _asked.setdefault(name, reader)
        return super().__getitem__(name)


class Startup:
    """Made before they run."""

    def __init__(self):
        del sys.modules[__name__]
        self.open = self.descriptors().keys()
        self.asked = _asked
        self._plain = type(os.environ)
        os.environ.__class__ = Environ

    def go_on(self):
        """sitecustomize has run. Serve as the template once usercustomize has, too."""
        import site  # which is running

        if not site.ENABLE_USER_SITE:
            self._serve()
            return
        execute = site.execusercustomize

        def execusercustomize():
            site.execusercustomize = execute
            execute()
            self._serve()

        site.execusercustomize = execusercustomize

    def _serve(self):
        sys.modules["_hpclaunch_hooks"].beside("_hpclaunch_template").serve(self)

    def changes(self, before):
        """{name: value, or None where it is no more} of the variables that differ from `before`."""
        now = dict(os.environ)
        names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
        return {name: now.get(name) for name in names}

    @staticmethod
    def descriptors():
        """{descriptor: what it is}."""
        found = {}
        for fd in os.listdir("/proc/self/fd"):
            try:
                found[fd] = os.readlink("/proc/self/fd/" + fd)
            except OSError:  # that of the directory itself
                pass
        return found

    def end(self):
        """In what is forked from the template: os.environ is as it always is."""
        os.environ.__class__ = self._plain
