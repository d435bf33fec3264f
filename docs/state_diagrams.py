"""The diagrams in protocol.md, made from the tables that the code itself goes by.

python docs/state_diagrams.py    # writes them; a test compares
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from enum import Enum
from pathlib import Path

from hpclaunch.core.consensus.follower import STANDINGS, Standing
from hpclaunch.core.consensus.presence import TRANSITIONS, PeerState
from hpclaunch.core.member.worker_group import PHASES
from hpclaunch.core.protocol.model import Phase
from hpclaunch.core.protocol.stages import NEXT, Stage

PAGE = Path(__file__).parent / "protocol.md"
Table = Mapping[Enum, Set[Enum]]
TABLES: dict[str, tuple[tuple[Enum, ...], Table]] = {
    "follower": ((Standing.WAITING, Standing.LEADING), STANDINGS),
    "stages": ((Stage.RENDEZVOUS,), NEXT),
    "workers": ((Phase.PREPARING,), PHASES),
    "peer": ((PeerState.UNHEARD,), TRANSITIONS),
}
MARK = re.compile(r"<!-- states: (\w+) -->\n(?:```mermaid\n.*?^```\n)?", re.MULTILINE | re.DOTALL)


def diagram(name: str) -> str:
    """In Mermaid's language, which code hosts draw."""
    firsts, table = TABLES[name]
    lines = [f"    [*] --> {first.value}" for first in firsts]
    for state in type(firsts[0]):
        after = sorted(table[state], key=list(type(firsts[0])).index)
        lines += [f"    {state.value} --> {other.value}" for other in after]
        lines += [] if after else [f"    {state.value} --> [*]"]
    text = "\n".join(lines)
    return f"<!-- states: {name} -->\n```mermaid\nstateDiagram-v2\n{text}\n```\n"


def drawn(page: str) -> str:
    return MARK.sub(lambda mark: diagram(mark[1]), page)


if __name__ == "__main__":
    PAGE.write_text(drawn(PAGE.read_text()))
