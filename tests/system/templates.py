"""A fork server whose template is for one script, for tests."""

import sys
import time

from serving import LIMIT, Client

from hpclaunch.system.processes.fork_server_client import SITE
from hpclaunch.worker.fork_server_messages import Prepare, Step
from surroundings import PRELOADED

PATH = {"PYTHONPATH": SITE}


class Warm(Client):
    """A client whose template is for one script. `torch` lists directories for its PYTHONPATH."""

    def __init__(self, tmp_path, torch):
        super().__init__(tmp_path)
        self.torch = torch

    def prepare(self, source, *modules, now=True, env=None, steps=()):
        self.script = self.tmp_path / "app" / "train.py"
        self.script.parent.mkdir(exist_ok=True)
        self.script.write_text(PRELOADED + source)
        env = {**PATH, **(env or {})}
        env["PYTHONPATH"] = ":".join([env["PYTHONPATH"], *self.torch])
        self.env = env
        steps = [Step(*step) for step in steps]
        self.server.send(Prepare(self.command(), env, [*modules], ["LOCAL_RANK"], now, steps))

    def command(self, *args):
        return [sys.executable, "-u", str(self.script), *args]

    def ready(self):
        event = self.until("template")
        assert event["state"] == "ready", event
        return self

    def template(self):
        deadline = time.monotonic() + LIMIT
        while not self.others():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return self.others()[0]

    def round(self, *args, workers=1, **more):
        """Run a round to its end; return the output of its workers."""
        paths = [self.path(rank, kind) for rank in range(workers) for kind in ("out", "err")]
        for path in paths:
            path.unlink(missing_ok=True)
        self.start(*[self.command(*args)] * workers, warm=True, env=self.env, **more)
        self.until("gone")
        return [path.read_text() for path in paths[::2]]


# A script that reads another one, so that one template does for many.
ANY = "import sys; exec(compile(open(sys.argv.pop(1)).read(), sys.argv[0], 'exec'))\n"


class WithTorch(Warm):
    """A client whose template, with the real torch, is there for any script."""

    def __init__(self, tmp_path):
        super().__init__(tmp_path, [])
        self.prepare(ANY)
        self.ready()

    def command(self, source="", *args):
        file = self.tmp_path / "source.py"
        file.write_text(source)
        return super().command(str(file), *args)
