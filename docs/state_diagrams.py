"""The diagrams in protocol.md, made from the tables that the code itself goes by.

python docs/state_diagrams.py    # writes them; a test compares
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from enum import Enum
from pathlib import Path

from hpclaunch.core.consensus.follower import STANDINGS, Standing
from hpclaunch.core.consensus.presence import TRANSITIONS, PeerState
from hpclaunch.core.protocol.stages import NEXT, Stage

PAGE = Path(__file__).parent / "protocol.md"
Table = Mapping[Enum, Set[Enum]]
TABLES: dict[str, tuple[tuple[Enum, ...], Table]] = {
    "follower": ((Standing.WAITING, Standing.LEADING), STANDINGS),
    "stages": ((Stage.RENDEZVOUS,), NEXT),
    "peer": ((PeerState.UNHEARD,), TRANSITIONS),
}
MARK = re.compile(r"<!-- states: (\w+) -->\n(?:```mermaid\n.*?^```\n)?", re.MULTILINE | re.DOTALL)


def diagram(name: str) -> str:
    """Return the diagram in Mermaid's language, which code hosts draw: a line for each state."""
    firsts, table = TABLES[name]
    lines = [_line("begin((begin))", firsts)]
    for state in (states := list(type(firsts[0]))):
        after = sorted(table[state], key=states.index)
        lines += [_line(state.value, after)] if after else []
    text = "\n".join(lines)
    return f"<!-- states: {name} -->\n```mermaid\nflowchart LR\n{text}\n```\n"


def _line(state: str, after: Sequence[Enum]) -> str:
    return f"    {state} --> {' & '.join(each.value for each in after)}"


def drawn(page: str) -> str:
    return MARK.sub(lambda mark: diagram(mark[1]), page)


if __name__ == "__main__":
    PAGE.write_text(drawn(PAGE.read_text()))
