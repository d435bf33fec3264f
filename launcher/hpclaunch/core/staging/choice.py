"""The choice of the generation that the next round resumes from."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from .copies import is_available
from .generations import Holding, Manifest, last_restore


def shown(holdings: Sequence[Holding]) -> dict[str, Holding]:
    """Return, for each file name, the node whose file of this name the view shows.

    Nodes that took part in the last restore come before others: a node that was cut off may return
    with old files. Files that were saved since come before restored ones.
    """

    def rank(holding: Holding, name: str) -> tuple[int, bool, int, int]:
        is_new = name not in holding.old and name not in holding.fetched
        return holding.restore.number, is_new, holding.files[name][1], -holding.node

    view: dict[str, Holding] = {}
    for holding in holdings:
        for name in holding.files:
            if name not in view or rank(holding, name) > rank(view[name], name):
                view[name] = holding
    return view


def mixtures(found: Sequence[Manifest], holdings: Sequence[Holding]) -> list[Manifest]:
    """Return the checkpoints of the view that may have files of several saves.

    Two nodes may have files of one name, from different saves. If the node with the newer file is
    lost, or its script deletes that file, the view shows the older one. A checkpoint that was
    restored or is kept is no mixture. Any other may be one, unless all of its needed files are on
    nodes that have recorded the last restore, and one of these holds:
    - All of them were saved since the last restore, or none of them was.
    - Those from before the restore are unchanged on all nodes of the round, and no node of the
      round is lost.
    """
    last = last_restore(holdings)
    known = {h.restore.generation for h in holdings}
    known |= {k.manifest.generation for h in holdings for k in h.kept}
    round_ = [h for h in holdings if h.restore == last and h.node in last.nodes]
    view = shown(holdings)

    def is_one_save(manifest: Manifest) -> bool:
        names = [f.name for f in manifest.needed]
        if any(n not in view or view[n].restore != last for n in names):
            return False
        if any(n in view[n].fetched - view[n].old for n in names):  # by a restore that has failed
            return False
        old = [f for f in manifest.needed if f.name in view[f.name].old]
        are_unchanged = all(h.has(f) and f.name in h.old for f in old for h in round_)
        return len(old) in (0, len(names)) or (len(round_) == len(last.nodes) and are_unchanged)

    return [m for m in found if m.generation not in known and not is_one_save(m)]


def known_generations(
    found: Sequence[Manifest], holdings: Sequence[Holding]
) -> dict[str, Manifest]:
    """Return the generations of the view, as the view shows them, and those that are kept."""
    mixed = mixtures(found, holdings)
    known = {k.manifest.generation: k.manifest for h in holdings for k in h.kept}
    return known | {m.generation: m for m in found if m not in mixed}


def choice(
    found: Sequence[Manifest],
    holdings: Sequence[Holding],
    avoid: Collection[str] = (),
) -> Manifest | None:
    """Return the newest generation that all nodes can have from memory; None if there is none.

    `found` are the complete checkpoints of the view, the newest first. `avoid` has keys of
    checkpoints with which the job has failed.
    """
    known = known_generations(found, holdings)
    in_view = [m for m in found if m.generation in known and m.key not in avoid]
    others = known.keys() - {m.generation for m in found}
    candidates = in_view[:1]  # the search orders them better than times would (by step)
    candidates += [
        known[name]
        for name in others
        if known[name].key not in avoid and is_available(known[name], holdings)
    ]
    return max(candidates, key=lambda m: m.generation, default=None)


def outdated(
    restored: Sequence[Manifest],
    found: Sequence[Manifest],
    holdings: Sequence[Holding],
    nodes: Collection[int],
    fragments: Collection[Manifest] = (),
) -> dict[int, frozenset[str]]:
    """Return, by node, the files to remove after a restore, so that a search there finds the chosen
    generation and nothing newer: files of which the view shows another version, the decisive files
    of mixtures and `fragments`, and files in the directories of restored checkpoints that are not
    part of these.

    `restored` are the chosen generation and older ones, which `nodes` have now. `found` and
    `holdings` are those from which it was chosen. `fragments` lack a file of a lost node.
    """
    view = shown(holdings)
    mixed = {m.decisive for m in (*mixtures(found, holdings), *fragments)}
    staying = {f.name: f for m in reversed(restored) for f in m.files}
    moved = tuple(f"{path}/" for m in restored for path in m.moved if path != ".")

    def is_outdated(holding: Holding, name: str) -> bool:
        if name in staying:
            return holding.node not in nodes and not holding.has(staying[name])
        is_shown = name in view and view[name].files[name] == holding.files[name]
        return not is_shown or name in mixed or f"{name}/".startswith(moved)

    return {h.node: frozenset(n for n in h.files if is_outdated(h, n)) for h in holdings}
