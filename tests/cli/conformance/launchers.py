"""The same command under an interpreter, torchrun and hpclaunch: one machine, nothing in between.

All start in the same directory with the same files, so that reports can be compared unchanged.
"""

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from launching import HPCLAUNCH, LIMIT

from surroundings import environment

FILES = Path(__file__).parent
RUN_ID = "conformance"
ADDRESS = re.compile("0x[0-9a-f]+")  # of an object, in what an interpreter says
MODULES = re.compile(r"(Extension modules: )(.*)(?= \(total)")


@dataclass(frozen=True)
class Run:
    code: int  # the launcher's own
    facts: tuple  # by rank: what the script wrote about itself
    out: str  # rank 0's, as it wrote it
    err: str


def text(path):
    """Return what was written, with the modules of a fatal error by name: they may have been
    imported in any order.
    """
    text = ADDRESS.sub("0x...", path.read_text("utf-8", "surrogateescape"))
    return MODULES.sub(lambda found: found[1] + ", ".join(sorted(found[2].split(", "))), text)


def by_hand(rank, world):
    """Return the variables that torchrun would set for a worker whose user has set none of them."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "ROLE_RANK": str(rank),
        "GROUP_RANK": "0",
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "ROLE_WORLD_SIZE": str(world),
        "GROUP_WORLD_SIZE": "1",
        "ROLE_NAME": "default",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_ERROR_FILE": "error.json",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_RUN_ID": RUN_ID,
        "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        **({"OMP_NUM_THREADS": "1"} if world > 1 else {}),
    }


class Launchers:
    """The launchers of one comparison, which run the same command.

    Each method takes the words after the launcher's options. The runs leave their logs in
    `outside`, and scripts write their facts into the directory `reports`.
    """

    def __init__(
        self,
        cwd,
        outside,
        *,
        start="cold",
        env=None,
        before=(),
        program=sys.executable,
        reports=None,
    ):
        self.start = ["--cold"] if start == "cold" else []
        self.cwd, self.outside, self.before, self.program = cwd, outside, before, program
        self.reports = reports or outside / "reports"
        for directory in (outside, self.reports):
            directory.mkdir(parents=True, exist_ok=True)
        known, env = environment(CONFORMANCE_OUT=self.reports), env or {}
        self.env = known | env
        if paths := [each["PYTHONPATH"] for each in (env, known) if each.get("PYTHONPATH")]:
            self.env["PYTHONPATH"] = os.pathsep.join(paths)  # the tests' own behind the user's

    def python(self, *words, workers=1):
        """Run the reference: an interpreter for each rank, with torchrun's variables."""
        if words[0] == sys.executable:  # as hpclaunch takes it off
            words = words[1:]
        starts = [
            self._start([self.program, "-u", *words], f"python-{rank}", by_hand(rank, workers))
            for rank in range(workers)
        ]
        codes = [process.wait(LIMIT) for process in starts]
        out, err = (self.outside / f"python-0.{name}" for name in ("out", "err"))
        return self._finished(codes[0], out, err, workers)

    def hpclaunch(self, *words, workers=1):
        logs = self.outside / "hpclaunch"
        options = ["--nproc", workers, "--bind", "none", "--max-restarts", 0, "--log-dir", logs]
        # By the tests' interpreter: the installed command may name it in another way.
        command = [self.program, HPCLAUNCH, *options, *self.start, "--rdzv-id", RUN_ID, *words]
        code = self._start(command, "hpclaunch").wait(LIMIT)
        out, err = (logs / "round-0" / f"rank-0.{name}" for name in ("out", "err"))
        return self._finished(code, out, err, workers)

    def torchrun(self, torchruns, *words, workers=1):
        """Run the words by `torchruns`, which has imported torchrun."""
        logs = self.outside / "torchrun"
        rendezvous = ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--rdzv-id", RUN_ID]
        options = ["--nproc-per-node", workers, "--redirects=3", "--log-dir", logs, *rendezvous]
        more = {"cwd": self.cwd, "env": self.env, "is_given_input": False}
        launched = torchruns.launch(*options, *words, **more)
        launched.communicate()
        (out,), (err,) = (logs.glob(f"*/attempt_0/0/{name}.log") for name in ("stdout", "stderr"))
        return self._finished(launched.returncode, out, err, workers)

    def forked(self, *words):
        """Run the words as hpclaunch must not do it: see forking.py."""
        command = [sys.executable, FILES / "forking.py", *words]
        code = self._start(command, "forked", by_hand(0, 1)).wait(LIMIT)
        out, err = (self.outside / f"forked.{name}" for name in ("out", "err"))
        return self._finished(code, out, err, 1)

    def _start(self, command, name, env=None):
        """Start a command whose output goes to files, as a worker's does under hpclaunch."""
        out, err = (self.outside / f"{name}.{stream}" for stream in ("out", "err"))
        with open(out, "ab") as stdout, open(err, "ab") as stderr:
            return subprocess.Popen(
                [*self.before, *map(str, command)],
                cwd=self.cwd,
                env={**(env or {}), **self.env},
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
            )

    def _finished(self, code, out, err, workers):
        files = [self.reports / f"{rank}.json" for rank in range(workers)]
        facts = tuple(json.loads(f.read_text("utf-8")) for f in files if f.exists())
        for file in files:
            file.unlink(missing_ok=True)
        return Run(code, facts, text(out), text(err))
