"""Lists of hosts as Slurm writes them: "n3,n[1-2]"."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import groupby

# At most 18 digits: a damaged file may have thousands, which int() converts slowly or refuses.
NUMBERED = re.compile(r"(.*?)(\d{1,18})")
RANGE = re.compile(r"([^,]*?)\[(\d{1,18})-(\d{1,18})\]")
MOST = 1 << 16  # hosts of a range; a larger range comes from a damaged file


def written(hosts: Iterable[str]) -> str:
    """Write hosts in Slurm's form, and keep their order: [n3, n1, n2] -> "n3,n[1-2]"."""

    def run_of(entry: tuple[int, str]) -> tuple[str, int, int]:
        """Return a key that is equal for consecutive hosts with consecutive numbers."""
        position, host = entry
        numbered = NUMBERED.fullmatch(host)
        if numbered is None:
            return host, 0, position
        return numbered[1], len(numbered[2]), int(numbered[2]) - position

    parts = []
    for (prefix, _, _), run in groupby(enumerate(hosts), run_of):
        first, *rest = (host for _, host in run)
        parts.append(
            f"{prefix}[{first[len(prefix) :]}-{rest[-1][len(prefix) :]}]" if rest else first
        )
    return ",".join(parts)


def read(text: str) -> Iterator[str]:
    """Yield the hosts in what `written` has returned, in their order."""
    for part in filter(None, text.split(",")):
        run = RANGE.fullmatch(part)
        if run is None:
            yield part
            continue
        prefix, first, last = run.groups()
        numbers = range(int(first), int(last) + 1)
        yield from (f"{prefix}{number:0{len(first)}}" for number in numbers[:MOST])
