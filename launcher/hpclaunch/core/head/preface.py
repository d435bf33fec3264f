"""What the user is told as a round begins: who takes part, and where the training begins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..protocol.events import CheckpointChosen
from ..protocol.model import Assignment, Job
from ..protocol.wording import count, plain, some
from .roster import Roster

NAMES = 8  # hosts named in one line
OWN_GPUS_ONLY = (
    "each worker sees its own only, as device 0: LOCAL_RANK is 0, and HPCLAUNCH_LOCAL_RANK is its "
    "number on the node"
)


def preface(
    job: Job,
    roster: Roster,
    last: Sequence[int],
    groups: Sequence[int],
    checkpoint: CheckpointChosen,
    begins: int,
) -> list[str]:
    """Return the lines that the user is told. `last` and `groups` are the nodes of the last round
    and of this one, in the order of their ranks. `begins` says how often the training has begun,
    with this round.
    """
    parts = [(p.host, p.assignment) for p in roster if p.assignment is not None]
    anyone = parts[0][1]  # for what is the same in all assignments
    lines = layout(parts, asked=job.isolate) if anyone.round == 0 else []
    lines += changes(last, groups, {p.place.node: p.host for p in roster})
    lines += [f"passing over checkpoint {plain(text)}" for text in checkpoint.passed_over]
    if checkpoint.path:
        how = f" ({plain(checkpoint.rule)})" if checkpoint.rule else ""
        lines.append(f"resuming from {plain(checkpoint.path)}{how}")
    elif begins > 1 or checkpoint.lacking or checkpoint.passed_over:
        lines += _no_checkpoint(job, begins, checkpoint)
    return lines


def _no_checkpoint(job: Job, begins: int, checkpoint: CheckpointChosen) -> list[str]:
    """Say why the round begins without a checkpoint, and what can be done about it."""
    if not job.saves:
        if begins > 2:
            return []
        hint = "--checkpoint-dir DIR gives it the newest one in HPCLAUNCH_CHECKPOINT"
        return [f"training begins again, unless the script finds its checkpoints itself ({hint})"]
    again = "training begins again from the start" if begins > 1 else "training begins at the start"
    if checkpoint.passed_over:
        return [
            f"{again}, without a checkpoint: none can be used (hpclaunch checkpoints lists them)"
        ]
    why = checkpoint.lacking or "nothing has been saved in --checkpoint-dir yet"
    return [f"{again}, without a checkpoint: {plain(why)}"]


def changes(last: Sequence[int], groups: Sequence[int], hosts: Mapping[int, str]) -> list[str]:
    """Say which nodes have come and gone since the last round; [] if none have.

    `last` and `groups` are the nodes of the last round and of this one, in the order of their
    ranks; `hosts` names each node.
    """
    before, now = set(last), set(groups)
    came = [hosts[node] for node in groups if node not in before]
    gone = [hosts[node] for node in last if node not in now and node in hosts]
    if not last or not (came or gone):
        return []
    said = [f"with {some(came, NAMES)}"] if came else []
    said += [f"without {some(gone, NAMES)}"] if gone else []
    return [f"going on {' and '.join(said)}: {count(len(groups), 'node')}"]


def layout(parts: Sequence[tuple[str, Assignment]], *, asked: bool) -> list[str]:
    """Say what is unusual about the ranks and their GPUs; [] for nothing.

    `parts` has the host and the assignment of each agent. `asked`: the user has asked that each
    worker sees its own GPUs only.
    """
    lines = []
    if len({part.local_world_size for _, part in parts}) > 1:
        lines.append(f"the nodes have different numbers of workers: {parts[0][1].layout}")
    return lines + _gpu_lines(parts, asked)


def _gpu_lines(parts: Iterable[tuple[str, Assignment]], asked: bool) -> list[str]:
    """One line for all hosts that are alike."""
    nodes: dict[str, list[Assignment]] = {}
    for host, part in parts:
        nodes.setdefault(host, []).append(part)
    hosts_by_line: dict[str, list[str]] = {}
    for host, of_host in nodes.items():
        if line := _gpu_line(of_host, asked):
            hosts_by_line.setdefault(line, []).append(host)
    return [line.format(some(hosts, NAMES)) for line, hosts in hosts_by_line.items()]


def _gpu_line(parts: list[Assignment], asked: bool) -> str:
    """The line for one host, with {} for its name; "" for nothing."""
    shares = [share for part in parts for share in part.shares.of]
    if not any(share.gpus for share in shares) or not parts[0].shares.isolated:
        return ""
    if max(share.sharers for share in shares) > 1:
        gpus = count(sum(len(share.gpus) for share in shares if share.leads), "GPU")
        return f"{len(shares)} workers share {gpus} on {{}}; {OWN_GPUS_ONLY}"
    return "" if asked else f"GPUs on {{}} are dealt out: {OWN_GPUS_ONLY}"
