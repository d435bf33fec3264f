"""The keys of the full screen."""

from __future__ import annotations

import pytest
from test_screens import LAUNCHES

from hpclaunch.observe.text_style import TextStyle
from hpclaunch.observe.top_screen import Sort, TopState, top_screen


def after(*keys: str) -> TopState | None:
    state: TopState | None = TopState()
    for key in keys:
        assert state is not None
        state = state.pressed(key)
    return state


@pytest.mark.parametrize(
    ("keys", "state"),
    [
        ("", TopState()),
        ("r", TopState(by_rank=True)),
        ("rn", TopState()),
        ("q", None),
        ("s", TopState(sort=Sort.STEP)),
        ("c", TopState(sort=Sort.CPU)),
        ("m", TopState(sort=Sort.MEMORY)),
        ("mo", TopState()),
        ("x?", TopState()),
        ("/q1", TopState(typing=True, filter="q1")),
        (["/", "a", "b", "erase"], TopState(typing=True, filter="a")),
        (["/", "a", "enter"], TopState(filter="a")),
        (["/", "a", "enter", "escape"], TopState()),
        (["/", "a", "escape"], TopState()),
        (["/", "down"], TopState(typing=True)),
        (["down", "down"], TopState(first=2)),
        (["page down", "up"], TopState(first=9)),
        (["up"], TopState()),
        (["down", "r"], TopState(by_rank=True)),
    ],
)
def test_keys(keys: str, state: TopState | None) -> None:
    assert after(*keys) == state


@pytest.mark.parametrize("height", [1, 2, 5, 10, 24, 2000])
@pytest.mark.parametrize("name", LAUNCHES)
def test_any_height(name: str, height: int) -> None:
    for state in (TopState(), TopState(by_rank=True, first=10**6), TopState(filter="none")):
        lines = top_screen(LAUNCHES[name], state, TextStyle(60), height).lines
        assert 0 < len(lines) <= height
        assert all(len(line) <= 60 for line in lines)


def test_rows_are_sorted() -> None:
    launch = LAUNCHES["1024-ranks"]
    state = TopState(by_rank=True, sort=Sort.MEMORY)
    rows = top_screen(launch, state, TextStyle(80), 2000).lines
    table = rows[rows.index("") + 2 : -1]
    ranks = [int(row.split()[0]) for row in table]
    assert ranks == list(range(1023, -1, -1))


@pytest.mark.parametrize("height", [1, 24, 2000])
def test_keys_past_the_end_need_not_be_undone(height: int) -> None:
    def shown(state: TopState | None) -> TopState:
        assert state is not None
        return top_screen(LAUNCHES["1024-ranks"], state, TextStyle(80), height).state

    last = shown(TopState(by_rank=True, first=10**6))
    assert shown(last.pressed("page down")) == last
    up = shown(last.pressed("up"))
    assert up.first == max(0, last.first - 1)
    assert shown(up.pressed("down")) == last
