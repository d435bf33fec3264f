"""The selection of the workers' output that the console shows, by torchrun's options.

Source: torch/distributed/elastic/multiprocessing/api.py (torch 2.15). The files of each worker
always contain all of its output.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, IntFlag, auto
from string import Template

from ..protocol.errors import UsageError
from ..protocol.values import field, value


class Std(IntFlag):
    """The output streams of a worker, with torchrun's numbers for them."""

    NONE = 0
    OUT = 1
    ERR = 2


class Shown(Enum):
    """The form in which the console shows one stream of one worker."""

    HIDDEN = auto()
    PLAIN = auto()
    PREFIXED = auto()


@value(frozen=True)
class Selection:
    """Streams by local rank: those in `by_rank`, and `others` for all other ranks."""

    others: Std = Std.NONE
    by_rank: Mapping[int, Std] = field(default_factory=dict)

    def has(self, local_rank: int, stream: Std) -> bool:
        return bool(self.by_rank.get(local_rank, self.others) & stream)


@value(frozen=True)
class Streams:
    """The user's options. By default, as in torchrun, everything is shown without a prefix, and
    nothing is duplicated.
    """

    redirects: Selection = Selection()
    tee: Selection = Selection()
    local_ranks: frozenset[int] = frozenset()  # show only these; empty: show all
    stdout_filters: tuple[str, ...] = ()  # lines with any of these are duplicated to a file
    stderr_filters: tuple[str, ...] = ()
    prefix_template: str = ""  # the prefix of tee'd lines; "" for "[role + local rank]:"

    def shown(self, local_rank: int, stream: Std) -> Shown:
        """Return how the console shows a stream.

        A worker outside `local_ranks` is hidden. Otherwise a stream that is tee'd is shown, even if
        it is redirected too. A stream that is only redirected is hidden.
        """
        if self.local_ranks and local_rank not in self.local_ranks:
            return Shown.HIDDEN
        if self.tee.has(local_rank, stream):
            return Shown.PREFIXED
        return Shown.HIDDEN if self.redirects.has(local_rank, stream) else Shown.PLAIN

    def filters(self, stream: Std) -> tuple[str, ...]:
        return self.stdout_filters if stream is Std.OUT else self.stderr_filters

    def prefix(self, *, role: str, rank: int, local_rank: int, host: str) -> str:
        """Return the prefix of a tee'd or duplicated line. Unknown names in the template are left
        as they are.
        """
        if not self.prefix_template:
            return f"[{role}{local_rank}]:"
        names = {"role_name": role, "rank": rank, "local_rank": local_rank, "hostname": host}
        return Template(self.prefix_template).safe_substitute(names)


def parse_selection(option: str, value: str) -> Selection:
    """Parse `3` (both streams of all workers) or `0:3,1:1` (by local rank; no streams of others).

    Raises UsageError for anything else.
    """
    if ":" not in value:
        return Selection(_std(option, value, value))
    by_rank: dict[int, Std] = {}
    for entry in value.split(","):
        rank, _, number = entry.partition(":")
        local_rank = _local_rank(rank)
        if local_rank is None:
            raise _bad_selection(option, value, f"{entry!r} is not LOCAL_RANK:STREAMS")
        if local_rank in by_rank:
            raise _bad_selection(option, value, f"local rank {local_rank} is there twice")
        by_rank[local_rank] = _std(option, value, number)
    return Selection(by_rank=by_rank)


def parse_local_ranks(option: str, value: str) -> frozenset[int]:
    """Parse `0,2`. An empty value gives the empty set, which stands for all ranks."""
    if not value:
        return frozenset()
    ranks = [_local_rank(entry) for entry in value.split(",")]
    found = frozenset(rank for rank in ranks if rank is not None)
    if None in ranks:
        raise UsageError(
            f"{option} {value!r}: not a list of local ranks; write for example {option} 0,2"
        )
    return found


def parse_filters(value: str) -> tuple[str, ...]:
    """Parse `apple,orange`; `,,` stands for a comma. Empty words, which every line contains, are
    left out.
    """
    words = value.replace(",,", "\0").split(",")  # an argument of a program never contains NUL
    return tuple(word.replace("\0", ",") for word in words if word)


def _local_rank(text: str) -> int | None:
    digits = text.strip()
    if not (digits.isascii() and digits.isdecimal()):
        return None
    try:
        return int(digits)
    except ValueError:  # thousands of digits
        return None


def _std(option: str, value: str, number: str) -> Std:
    if number.strip() not in ("0", "1", "2", "3"):
        why = f"{number!r} is not 0 (none), 1 (stdout), 2 (stderr) or 3 (both)"
        raise _bad_selection(option, value, why)
    return Std(int(number))


def _bad_selection(option: str, value: str, why: str) -> UsageError:
    return UsageError(
        f"{option} {value!r}: {why}; write for example {option} 3 for all workers, or "
        f"{option} 0:3,1:1 by local rank"
    )
