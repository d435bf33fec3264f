"""What the user is told as a round begins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..protocol.events import CheckpointChosen
from ..protocol.model import Assignment, Job
from ..protocol.wording import count, plain, some
from .roster import Roster

NAMES = 8
AS_SEEN = (
    "each worker sees its own only, as device 0: LOCAL_RANK is 0, HPCLAUNCH_LOCAL_RANK counts on "
    "the node"
)


def preface(
    job: Job,
    roster: Roster,
    last: Sequence[int],
    groups: Sequence[int],
    checkpoint: CheckpointChosen,
) -> list[str]:
    """`last` and `groups` are the nodes of the last round and this one, as `changes` takes them."""
    parts = [(p.host, p.assignment) for p in roster if p.assignment is not None]
    of_all = parts[0][1]
    lines = layout(parts, asked=job.isolate) if of_all.round == 0 else []
    lines += changes(last, groups, {p.place.node: p.host for p in roster})
    if of_all.preflight:
        return [*lines, "preflight: measuring GPUs and links"]
    lines += [f"passing over checkpoint {plain(text)}" for text in checkpoint.passed_over]
    if checkpoint.path:
        how = f" ({plain(checkpoint.rule)})" if checkpoint.rule else ""
        lines.append(f"resuming from {plain(checkpoint.path)}{how}")
    elif of_all.restarts or checkpoint.lacking or checkpoint.passed_over:
        lines += _from_the_beginning(job, of_all.restarts, checkpoint)
    return lines


def _from_the_beginning(job: Job, restarts: int, checkpoint: CheckpointChosen) -> list[str]:
    """Why there is no checkpoint, and what would mend it."""
    if not job.saves:
        if restarts > 1:
            return []
        hint = "--checkpoint-dir DIR gives it the newest one in HPCLAUNCH_CHECKPOINT"
        return [f"training begins again, unless the script finds its checkpoints itself ({hint})"]
    again = "training begins again from the start" if restarts else "training begins at the start"
    if checkpoint.passed_over:
        return [
            f"{again}, without a checkpoint: none can be used (hpclaunch checkpoints lists them)"
        ]
    why = checkpoint.lacking or "nothing has been saved in --checkpoint-dir yet"
    return [f"{again}, without a checkpoint: {plain(why)}"]


def changes(last: Sequence[int], groups: Sequence[int], hosts: Mapping[int, str]) -> list[str]:
    """Who has come and who has gone since the last round; nodes in the order of the ranks."""
    before, now = set(last), set(groups)
    came = [hosts[node] for node in groups if node not in before]
    gone = [hosts[node] for node in last if node not in now and node in hosts]
    if not last or not (came or gone):
        return []
    said = [f"with {some(came, NAMES)}"] if came else []
    said += [f"without {some(gone, NAMES)}"] if gone else []
    return [f"going on {' and '.join(said)}: {count(len(groups), 'node')}"]


def layout(parts: Sequence[tuple[str, Assignment]], *, asked: bool) -> list[str]:
    """What is not plain about the ranks and their GPUs; `asked`: each is to see its own only."""
    lines = []
    if len({part.local_world_size for _, part in parts}) > 1:
        lines.append(f"the nodes have different numbers of workers: {parts[0][1].layout}")
    return lines + _of_gpus(parts, asked)


def _of_gpus(parts: Iterable[tuple[str, Assignment]], asked: bool) -> list[str]:
    """One line for the hosts that are alike."""
    nodes: dict[str, list[Assignment]] = {}
    for host, part in parts:
        nodes.setdefault(host, []).append(part)
    lines: dict[str, list[str]] = {}
    for host, of_host in nodes.items():
        if how := _how(of_host, asked):
            lines.setdefault(how, []).append(host)
    return [how.format(some(hosts, NAMES)) for how, hosts in lines.items()]


def _how(parts: list[Assignment], asked: bool) -> str:
    shares = [share for part in parts for share in part.shares.of]
    if not shares or not parts[0].shares.isolated:
        return ""
    if max(share.sharers for share in shares) > 1:
        there = sum(len(share.gpus) for share in shares if share.leads)
        gpus = "1 GPU" if there == 1 else f"{there} GPUs"
        return f"{len(shares)} workers share {gpus} on {{}}; {AS_SEEN}"
    return "" if asked else f"GPUs on {{}} are dealt out: {AS_SEEN}"
