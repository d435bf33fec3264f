"""Trackers and links that name a checkpoint, such as `latest`, after the checkpoint was lost with a
node: scripts that read them would look for it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence

from hpclaunch.system.checkpoints.candidates import OF_RANK, CheckpointCandidate, step_of

from .contents import NOTE, file_at, is_draft, named_by, target_of


def renamed(root: str, lost: Sequence[CheckpointCandidate], key: str) -> Iterator[tuple[str, str]]:
    """Yield each tracker or link that names one of the `lost` checkpoints, and the text with which
    it names the checkpoint `key` instead; "" if it cannot.
    """
    for folder in {os.path.relpath(os.path.dirname(each.path), root) for each in lost}:
        is_beside = os.path.normpath(os.path.dirname(key) or os.curdir) == folder
        new = os.path.basename(key) if key and is_beside else ""
        names = os.listdir(os.path.join(root, folder))
        for name in (os.path.normpath(os.path.join(folder, n)) for n in names if not is_draft(n)):
            with contextlib.suppress(OSError, UnicodeDecodeError):  # unreadable, or no tracker
                each, path = file_at(root, name), os.path.join(root, name)
                if each.is_link:
                    target = target_of(root, name)
                    if any(target == os.path.relpath(c.path, root) for c in lost):
                        yield name, _of_the_same_rank(new, target)
                elif each.is_file and each.size <= NOTE and named_by(path, lost):
                    with open(path, encoding="utf-8") as file:
                        yield name, _renamed(file.read(), new)


def _of_the_same_rank(new: str, old: str) -> str:
    """Return the name `new`, with the rank in the name `old` if each rank has its own file."""
    rank = OF_RANK.search(os.path.basename(old))
    return OF_RANK.sub(rank[0], new) if rank else new


def _renamed(text: str, new: str) -> str:
    """Return the text of a tracker that names another checkpoint in the same way: by its name, or
    by its step only.
    """
    word = os.path.basename(text.strip())
    if word.isdecimal():
        step = step_of(new)
        new = "" if step is None else str(step.value)
    before, _, after = text.rpartition(word)
    new = _of_the_same_rank(new, word)
    return f"{before}{new}{after}" if new else ""
