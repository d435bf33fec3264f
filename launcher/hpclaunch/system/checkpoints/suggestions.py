"""Where scripts save that were not told to: for a launch without --checkpoint-dir."""

from __future__ import annotations

import os
from collections.abc import Iterable

from .candidates import NOTHING_KNOWN
from .finding import ExaminedCheckpoint, search

# Lightning's, the HF Trainer's (of several versions), torchtitan's and Hydra's own, and what
# tutorials and examples use; the narrow before the wide.
DEFAULTS = (
    *("lightning_logs/**", "trainer_output", "tmp_trainer", "outputs/**", "runs/**"),
    *("checkpoints", "checkpoint", "ckpts", "ckpt", "snapshots", "saved", "output", "out"),
    *("results", "models", "."),
)


def patterns(arguments: Iterable[str]) -> list[str]:
    """Of the script, each as --checkpoint-dir would take it: directories that its arguments name
    come first."""
    named = [word.partition("=")[2] or word for word in arguments]
    there = [os.path.normpath(word) for word in named if word and os.path.isdir(word)]
    return list(dict.fromkeys([*there, *(os.path.join(word, "**") for word in there), *DEFAULTS]))


def newest(places: Iterable[str], since: int) -> tuple[str, ExaminedCheckpoint] | None:
    """The last that was saved since then, in ns, and the first place that has it."""
    best: tuple[str, ExaminedCheckpoint] | None = None
    for place in places:
        try:
            found = search(place, NOTHING_KNOWN)
        except OSError:  # too many directories, or none that can be read
            continue
        for each in found[-1:]:
            time = each.candidate.time
            is_newer = best is None or time > best[1].candidate.time
            if each.lacks is None and time >= since and is_newer:
                best = place, each
    return best
