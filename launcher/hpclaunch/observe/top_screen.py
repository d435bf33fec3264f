"""The full screen of a launch, and the effect of keys on it. The caller reads keys and draws."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from ..core.protocol.job_snapshot import AgentSnapshot, JobSnapshot, LaunchSnapshot
from ..core.protocol.values import replace, value
from .job_screen import RankRow, head_lines, nodes_table, ranks_table
from .text_style import Colour, TextStyle

PAGE = 10  # rows


class Sort(Enum):
    """The order of the rows. The first letter is its key."""

    ORDER = "order"
    STEP = "step"  # the fewest first
    CPU = "cpu"  # the most first
    MEMORY = "memory"


KEYS: dict[str, Sort] = {sort.value[0]: sort for sort in Sort}
NODE_KEYS: dict[Sort, Callable[[AgentSnapshot], float]] = {
    Sort.ORDER: lambda agent: agent.index,
    Sort.STEP: lambda agent: agent.step or agent.made,
    Sort.CPU: lambda agent: -sum(worker.cpu for worker in agent.workers),
    Sort.MEMORY: lambda agent: -sum(worker.memory for worker in agent.workers),
}
RANK_KEYS: dict[Sort, Callable[[RankRow], float]] = {
    Sort.ORDER: lambda row: row.rank,
    Sort.STEP: lambda row: row.step,
    Sort.CPU: lambda row: -row.worker.cpu if row.worker else 0.0,
    Sort.MEMORY: lambda row: -row.worker.memory if row.worker else 0.0,
}


@value(frozen=True)
class TopState:
    """The choices of the user. Keys are characters, or "up", "down", "page up", "page down",
    "enter", "erase" and "escape".
    """

    by_rank: bool = False
    sort: Sort = Sort.ORDER
    filter: str = ""  # part of a node's name
    typing: bool = False  # the user is typing the filter
    first: int = 0  # the uppermost row that is shown

    def pressed(self, key: str) -> TopState | None:
        """Return the state after a key; None to leave. Keys without a meaning change nothing."""
        if self.typing:
            return self._typed(key)
        match key:
            case "q":
                return None
            case "r" | "n":
                return replace(self, by_rank=key == "r", first=0)
            case "/":
                return replace(self, typing=True, filter="", first=0)
            case "escape":
                return replace(self, filter="", first=0)
            case "up" | "down" | "page up" | "page down":
                by = (PAGE if "page" in key else 1) * (1 if "down" in key else -1)
                return replace(self, first=max(0, self.first + by))
        return replace(self, sort=KEYS[key], first=0) if key in KEYS else self

    def _typed(self, key: str) -> TopState:
        match key:
            case "enter":
                return replace(self, typing=False)
            case "escape":
                return replace(self, typing=False, filter="")
            case "erase":
                return replace(self, filter=self.filter[:-1])
        return replace(self, filter=self.filter + key) if len(key) == 1 else self


@value(frozen=True)
class TopScreen:
    """The lines of a screen, and the state that they show: it scrolls no further than the rows."""

    lines: list[str]
    state: TopState


def top_screen(launch: LaunchSnapshot, state: TopState, style: TextStyle, height: int) -> TopScreen:
    """Return a screen of at most `height` lines."""
    job = launch.job
    if job is None:
        return TopScreen(head_lines(launch, style)[:height], state)
    above = [*head_lines(launch, style), ""]
    titles, *rows = _table(job, state, style)
    room = max(1, height - len(above) - 2)
    first = min(state.first, max(0, len(rows) - room))
    shown = rows[first : first + room]
    keys = _keys(state, first, len(shown), len(rows))
    lines = [*above[: max(0, height - 3)], titles, *shown, style.line((keys, Colour.FAINT))]
    return TopScreen(lines[:height], replace(state, first=first))


def _table(job: JobSnapshot, state: TopState, style: TextStyle) -> list[str]:
    agents = [agent for agent in job.running if state.filter in agent.host]
    agents.sort(key=NODE_KEYS[state.sort])
    of = replace(job, agents=tuple(agents))
    if state.by_rank:
        return ranks_table(of, style, RANK_KEYS[state.sort])
    return nodes_table(of, style, most=0)


def _keys(state: TopState, first: int, shown: int, total: int) -> str:
    if state.typing:
        return f"nodes with: {state.filter}_   Enter: done   Esc: all"
    other = "n nodes" if state.by_rank else "r ranks"
    sorts = " ".join(f"[{s.value}]" if s is state.sort else s.value for s in Sort)
    where = f"{first + 1}-{first + shown} of {total}" if shown < total else f"{total}"
    filtered = f" with {state.filter!r}" if state.filter else ""
    return f"{where}{filtered} · q quit · {other} · / filter · sort: {sorts}"
