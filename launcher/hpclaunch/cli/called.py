"""The launcher as the child of a program that called `hpclaunch.launch`: it ends with the program.

It sends that program a line of JSON: the launch's name and log directory, or an error.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hpclaunch.core.protocol.errors import UsageError
from hpclaunch.system.shared.prctl import die_with

from . import fill_standard_descriptors, look_for_libraries_first

if TYPE_CHECKING:
    from hpclaunch.agent.config import Config


def main(parent: str, fd: str, own: str, *words: str) -> int:
    """Run the command of these words. `fd` is the descriptor for the line, `own` a directory to
    remove at the end, or "".
    """
    try:
        return _launch(parent, fd, words)
    finally:
        if own:  # the calling program may have been killed
            shutil.rmtree(own, ignore_errors=True)


def _launch(parent: str, fd: str, words: Sequence[str]) -> int:
    os.set_inheritable(int(fd), False)
    fill_standard_descriptors()
    look_for_libraries_first()
    from hpclaunch.core.protocol.model import EXIT_USAGE

    from . import options, run

    # SIGTERM must end this process, even if the calling program ignores or blocks it.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    if not die_with(int(parent), signal.SIGTERM):
        return EXIT_USAGE
    with open(int(fd), "w") as answer:

        def begun(config: Config) -> None:
            if config.trouble is not None:
                json.dump({"error": config.trouble.reason}, answer)
            else:
                assert config.logs is not None, "without trouble there are logs"
                json.dump({"name": config.allocation.name, "logs": str(config.logs.path)}, answer)
            answer.close()

        try:
            chosen = options.build_parser(os.environ).parse_args(words)
            run.check(chosen)
            return run.run(chosen, os.environ, begun)
        except UsageError as e:
            json.dump({"error": str(e)}, answer)
            return EXIT_USAGE
