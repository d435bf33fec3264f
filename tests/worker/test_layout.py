"""The layout of the memory that workers share with their fork server."""

from __future__ import annotations

import math

import pytest

from hpclaunch.worker.site import _hpclaunch_layout as layout
from hpclaunch.worker.site._hpclaunch_layout import Place, Slot


@pytest.fixture
def slot() -> Slot:
    return Slot(memoryview(bytearray(layout.SLOT)))


def test_numbers_and_times_are_the_same_memory(slot):
    slot.times[layout.TIME] = 1.5
    assert slot.seconds(layout.TIME) == 1.5
    assert slot.numbers[layout.TIME] != 0
    slot.numbers[layout.TIME] = 0
    assert slot.seconds(layout.TIME) == 0.0


def test_the_last_fields_are_within_a_slot(slot):
    last = layout.SLOT // 8 - 1
    assert max(layout.HANDLED, layout.SPENT + len(layout.SPENDING) - 1) == last
    assert layout.SPENT + len(layout.SPENDING) == layout.ASKED_AT


@pytest.mark.parametrize("number", [-1, layout.LARGEST, layout.NEVER])
def test_numbers_that_no_worker_writes(slot, number):
    slot.numbers[layout.STEP] = slot.numbers[layout.PHASE] = number
    assert (slot.number(layout.STEP), slot.phase) == (0, layout.START)


@pytest.mark.parametrize("seconds", [-1.0, math.nan, math.inf, layout.LATEST])
def test_times_that_no_worker_writes(slot, seconds):
    slot.times[layout.TIME] = seconds
    assert slot.seconds(layout.TIME) == 0.0


def test_any_other_phase_is_one_that_the_script_has_named(slot):
    slot.numbers[layout.PHASE] = layout.OTHER + 7
    assert slot.phase == layout.OTHER
    assert len(layout.COUNTED) == layout.OTHER + 1


@pytest.mark.parametrize(
    ("phase", "met", "counted"),
    [
        (layout.START, 0.0, layout.IMPORTS),
        (layout.START, 2.0, layout.LOADING),
        (layout.EVALUATION, 2.0, layout.TRAINING),
        (layout.END, 2.0, layout.UNCOUNTED),
    ],
)
def test_the_first_phase_counts_as_loading_once_the_ranks_have_met(phase, met, counted):
    assert layout.counted_as(phase, met) == counted


def test_a_worker_finds_its_place_by_the_variable(monkeypatch):
    place = Place(4711, 5, 2, 6, 7, 8)
    for name, value in place.variable().items():
        monkeypatch.setenv(name, value)
    found = Place.of_environment()
    assert found is not None
    assert vars(found) == vars(place)


@pytest.mark.parametrize("value", [None, "", "1:2:3", "1:2:3:4:5:six", "1:2:3:4:5:6:7"])
def test_without_a_place(monkeypatch, value):
    monkeypatch.delenv(Place.VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(Place.VARIABLE, value)
    assert Place.of_environment() is None
