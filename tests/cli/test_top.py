"""hpclaunch top: the keys that a terminal sends."""

from __future__ import annotations

import os
import sys
import threading

import pytest

from hpclaunch.cli import top
from hpclaunch.core.protocol.job_snapshot import LaunchSnapshot
from hpclaunch.observe.top_screen import TopState
from hpclaunch.system.network import launches
from surroundings import environment


@pytest.mark.parametrize(
    ("sent", "keys"),
    [
        ("rq", ["r", "q"]),
        ("\x1b[A\x1b[6~/n1\r", ["up", "page down", "/", "n", "1", "enter"]),
        ("\x1b", ["escape"]),
        ("\x1bq", ["escape", "q"]),
        ("\x1b[C\x1b[D\x1b[H\x1b[F\x1b[3~", []),  # Right, Left, Home, End, Delete
        ("\x1bOP\x1b[15~\x1b[[A", []),  # F1, F5, and F1 on Linux's console
        ("\x1b[1;5Cr\x1b[200~", ["r"]),  # Ctrl-Right, and the beginning of a paste
    ],
)
def test_only_keys_with_a_name_count(sent, keys):
    assert list(top.keys_in(sent)) == keys


@pytest.fixture
def typing(monkeypatch):
    """Yield the descriptor through which keys are sent."""
    reading, writing = os.pipe()
    with os.fdopen(reading) as keyboard:
        monkeypatch.setattr(sys, "stdin", keyboard)
        yield writing
    os.close(writing)


@pytest.mark.parametrize("sent", ["\x1b[B", "\x1b[C", "\x1bOP"])
def test_a_key_in_two_parts_does_not_clear_the_filter(typing, monkeypatch, sent):
    monkeypatch.setattr(top, "REST", 10.0)
    begun = TopState(filter="n1")
    for cut in range(1, len(sent)):
        os.write(typing, sent[:cut].encode())
        later = threading.Timer(0.05, os.write, [typing, sent[cut:].encode()])
        later.start()
        assert top._typed(begun).filter == "n1"
        later.join()


def test_escape_clears_the_filter(typing):
    os.write(typing, b"\x1b")
    assert top._typed(TopState(filter="n1")) == TopState()


@pytest.mark.starts
def test_a_pause_is_before_each_search_for_the_head(typing, monkeypatch):
    """Each is a load for Slurm, and the step that shows the job may end at once."""
    launch = LaunchSnapshot("71.0", "71", "n1", 1, "a.py", "", 0.0, 0.0, None)
    found = launches.FoundLaunches("71", [launch], ("false",))
    searches = []
    monkeypatch.setattr(launches, "find", lambda *_: searches.append(1) or found)
    monkeypatch.setattr(top, "PAUSE", 0.5)
    later = threading.Timer(1.2, os.write, [typing, b"q"])
    later.start()
    assert top._show(found, environment()) is None
    later.join()
    assert len(searches) <= 3
