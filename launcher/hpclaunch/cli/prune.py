"""Remove the logs of launches that are long over.

    hpclaunch prune --older-than 30
    hpclaunch prune --older-than 30 --dry-run DIR

A launch's logs are removed if nothing in them has changed for that many days
and nobody uses them: no launch, and no process of yours on this machine. Only
files that hpclaunch made are removed; others stay, and so does their
directory.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from hpclaunch.core.protocol.errors import UsageError
from hpclaunch.core.protocol.model import EXIT_USAGE
from hpclaunch.core.protocol.wording import count, harmless, size

from . import say, values, write
from .parser import Parser

if TYPE_CHECKING:
    from hpclaunch.system.logs.old_runs import Removal, Run

DAY = 86400


def prepare_parser(parser: Parser) -> None:
    from hpclaunch.system.logs import log_directory

    parser.add_argument(
        "dir",
        nargs="?",
        type=Path,
        metavar="DIR",
        default=log_directory.of_all_launches(),
        help="where the launches have their directories (default: %(default)s)",
    )
    parser.add_argument(
        "--older-than", type=values.integer(1), required=True, metavar="DAYS", help="1 or more"
    )
    parser.add_argument("--dry-run", action="store_true", help="list them, and remove nothing")


def run(options: argparse.Namespace, environ: Mapping[str, str]) -> int:  # noqa: ARG001
    from hpclaunch.system.logs.old_runs import Removal, runs

    now = time.time()
    removal = Removal()
    listed = []
    removed = freed = younger = used = code = 0
    try:
        for found in runs(options.dir, now - options.older_than * DAY):
            if found is None:
                younger += 1
            elif removal.is_used(found):
                used += 1
            elif why := "" if options.dry_run else _remove(removal, found):
                say(f"error: {why}")
                code = EXIT_USAGE
            else:
                if options.dry_run:
                    age = count(int((now - found.changed) / DAY), "day")
                    listed.append(f"{harmless(str(found.path))}: {size(found.size)}, {age} old\n")
                removed += 1
                freed += found.size
    except OSError as e:
        where = e.filename or options.dir
        raise UsageError(f"cannot look for logs in {where}: {e.strerror or e}") from e
    done = "would remove" if options.dry_run else "removed"
    kept = f"{younger} younger" + (f", {used} in use" if used else "")
    many = f"{removed:,} launch{'' if removed == 1 else 'es'}"
    write(f"{''.join(listed)}{done} the logs of {many}, {size(freed)}; kept {kept}\n")
    return code


def _remove(removal: Removal, found: Run) -> str:
    """Returns why it cannot be done; others can be removed nevertheless."""
    try:
        removal.remove(found)
    except OSError as e:
        return f"cannot remove {e.filename}: {e.strerror or e}"
    return ""
