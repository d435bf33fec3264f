"""Suggestions for --checkpoint-dir: where scripts save by default."""

from __future__ import annotations

import os
from collections.abc import Iterable

from .candidates import NOTHING_KNOWN
from .finding import ExaminedCheckpoint, search

# The defaults of Lightning, the HF Trainer (several versions), torchtitan and Hydra, and what
# tutorials and examples use; narrow ones before wide ones.
DEFAULTS = (
    *("lightning_logs/**", "trainer_output", "tmp_trainer", "outputs/**", "runs/**"),
    *("checkpoints", "checkpoint", "ckpts", "ckpt", "snapshots", "saved", "output", "out"),
    *("results", "models", "."),
)


def patterns(arguments: Iterable[str]) -> list[str]:
    """Return where a script with these arguments may save, in the form that --checkpoint-dir takes.
    Directories that the arguments name are first.
    """
    named = [word.partition("=")[2] or word for word in arguments]
    there = [os.path.normpath(word) for word in named if word and os.path.isdir(word)]
    return list(dict.fromkeys([*there, *(os.path.join(word, "**") for word in there), *DEFAULTS]))


def newest(places: Iterable[str], since: int) -> tuple[str, ExaminedCheckpoint] | None:
    """Return (pattern, checkpoint) for the newest complete one that was saved since then (ns)."""
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
