"""Lines of workers, with the time and the rank."""

from __future__ import annotations

import pytest

from hpclaunch.observe.log_lines import LogLines, visible


def moment(at):
    """Days of a hundred seconds."""
    return f"day {at // 100:.0f}", f"{at % 100:.0f} s"


@pytest.fixture
def lines():
    return LogLines(moment, for_terminal=False)


def test_a_round_and_its_lines(lines):
    assert lines.round("71.0", 0, 105.0, "") == b"-- 71.0 round 0, day 1 5 s\n"
    assert lines.line(106.0, 3, b"loss 0.25") == b"6 s [3]: loss 0.25\n"
    text = lines.round("71.0", 1, 107.0, "round 0 ended: exception, rank 1 on n2")
    assert text == b"-- 71.0 round 1, day 1 7 s; round 0 ended: exception, rank 1 on n2\n"


def test_another_day_is_said_once(lines):
    lines.round("71.0", 0, 199.0, "")
    assert lines.line(200.0, 0, b"a") == b"-- day 2\n0 s [0]: a\n"
    assert lines.line(201.0, 0, b"b") == b"1 s [0]: b\n"


def test_what_is_not_known(lines):
    assert lines.round("71.0", 2, None, "") == b"-- 71.0 round 2\n"
    assert lines.line(None, 0, b"a") == b"--:--:-- [0]: a\n"


ODD = b"\x1b[31mred\x1b[0m \x1b[2J\x1b]0;title\x07 \xe2\x80\xae \x07 \xc3\xa4 \xff \ta"


def test_bytes_stay_as_they_are_in_a_file(lines):
    assert lines.line(0.0, 0, ODD).endswith(b"[0]: " + ODD + b"\n")


def test_a_terminal_gets_colours_and_no_other_command():
    lines = LogLines(moment, for_terminal=True)
    shown = lines.line(0.0, 0, ODD).partition(b": ")[2]
    assert shown == b"\x1b[31mred\x1b[0m  ? ? \xc3\xa4 \xff \ta\x1b[0m\n"
    assert lines.line(1.0, 0, b"plain") == b"1 s [0]: plain\n"


def test_a_link_is_shown_as_its_words():
    lines = LogLines(moment, for_terminal=True)
    link = b"\x1b]8;;http://a\x1b\\words\x1b]8;;\x1b\\"
    assert lines.line(0.0, 0, link).endswith(b"[0]: words\n")


def test_a_launch_of_any_name(lines):
    assert b"\x1b" not in lines.round("a\x1b[2J", 0, None, "")


def test_words_are_found_behind_colours():
    assert visible(b"lo\x1b[1mss\x1b[0m \xc3\xa4\xff") == "loss ä\ufffd"
