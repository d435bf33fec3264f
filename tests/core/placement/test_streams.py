"""The worker output that is shown: torchrun's options, and mistakes in them."""

import itertools

import pytest

from hpclaunch.core.placement.streams import (
    Selection,
    Shown,
    Std,
    Streams,
    parse_filters,
    parse_local_ranks,
    parse_selection,
)
from hpclaunch.core.protocol.errors import UsageError


def pick(value):
    return parse_selection("--tee", value)


@pytest.mark.parametrize(
    ("value", "selected"),
    [
        ("0", {}),
        ("1", {0: 1, 1: 1, 12: 1, 123: 1}),
        ("3", {0: 3, 1: 3, 12: 3, 123: 3}),
        ("0:1,1:3", {0: 1, 1: 3}),
        ("12:2,123:1", {12: 2, 123: 1}),
        ("1:0", {}),
        (" 0:1, 12:2 ", {0: 1, 12: 2}),
    ],
)
def test_a_selection(value, selected):
    found = pick(value)
    for rank, stream in itertools.product((0, 1, 12, 123), (Std.OUT, Std.ERR)):
        assert found.has(rank, stream) == bool(selected.get(rank, 0) & stream)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("", "'' is not 0 (none), 1 (stdout), 2 (stderr) or 3 (both)"),
        ("4", "'4' is not 0"),
        ("out", "'out' is not 0"),
        ("1,1", "'1,1' is not 0"),
        ("0:4", "'4' is not 0"),
        ("0:", "'' is not 0"),
        ("0:1,", "'' is not LOCAL_RANK:STREAMS"),
        (":1", "':1' is not LOCAL_RANK:STREAMS"),
        ("0:1,3", "'' is not 0"),
        ("-1:1", "'-1:1' is not LOCAL_RANK:STREAMS"),
        ("0:1:2", "'1:2' is not 0"),
        ("a:1", "'a:1' is not LOCAL_RANK:STREAMS"),
        ("9" * 5000 + ":1", "9:1' is not LOCAL_RANK:STREAMS"),
        ("0:1,1:1,0:2", "local rank 0 is there twice"),
        ("0:1,00:2", "local rank 0 is there twice"),
    ],
)
def test_a_selection_that_is_none(value, why):
    with pytest.raises(UsageError) as e:
        parse_selection("--redirects", value)
    text = str(e.value)
    assert text.startswith(f"--redirects {value!r}: ")
    assert why in text
    assert "--redirects 3 for all workers, or --redirects 0:3,1:1 by local rank" in text
    assert "\n" not in text


def test_local_ranks():
    assert parse_local_ranks("--local-ranks-filter", "") == frozenset()
    assert parse_local_ranks("--local-ranks-filter", "0, 12,2,2") == {0, 2, 12}


@pytest.mark.parametrize("value", [",", "0,", "a", "-1", "1.5", "0;1", " "])
def test_local_ranks_that_are_none(value):
    with pytest.raises(UsageError) as e:
        parse_local_ranks("--local-ranks-filter", value)
    assert str(e.value).startswith(f"--local-ranks-filter {value!r}: ")
    assert "--local-ranks-filter 0,2" in str(e.value)


@pytest.mark.parametrize(
    ("value", "filters"),
    [
        ("", ()),
        ("apple", ("apple",)),
        ("apple,two words", ("apple", "two words")),
        ("a,,b,c", ("a,b", "c")),
        (",,", (",",)),
        ("apple,", ("apple",)),
        ("a,,,b", ("a,", "b")),
    ],
)
def test_filters(value, filters):
    assert parse_filters(value) == filters


HIDDEN, PLAIN, PREFIXED = Shown.HIDDEN, Shown.PLAIN, Shown.PREFIXED


@pytest.mark.parametrize(
    ("redirects", "tee", "local_ranks", "shown"),  # of rank 0's out and err, and of rank 1's
    [
        ("0", "0", "", (PLAIN, PLAIN, PLAIN, PLAIN)),
        ("3", "0", "", (HIDDEN, HIDDEN, HIDDEN, HIDDEN)),
        ("0", "3", "", (PREFIXED, PREFIXED, PREFIXED, PREFIXED)),
        ("2", "0", "", (PLAIN, HIDDEN, PLAIN, HIDDEN)),
        ("3", "1", "", (PREFIXED, HIDDEN, PREFIXED, HIDDEN)),
        ("3", "3", "", (PREFIXED, PREFIXED, PREFIXED, PREFIXED)),
        ("0:3", "1:2", "", (HIDDEN, HIDDEN, PLAIN, PREFIXED)),
        ("0", "0", "0", (PLAIN, PLAIN, HIDDEN, HIDDEN)),
        ("0", "3", "1", (HIDDEN, HIDDEN, PREFIXED, PREFIXED)),
        ("1", "0", "1", (HIDDEN, HIDDEN, HIDDEN, PLAIN)),
        ("0", "0", "7", (HIDDEN, HIDDEN, HIDDEN, HIDDEN)),
    ],
)
def test_what_is_shown(redirects, tee, local_ranks, shown):
    streams = Streams(pick(redirects), pick(tee), parse_local_ranks("", local_ranks))
    every = itertools.product((0, 1), (Std.OUT, Std.ERR))
    assert tuple(streams.shown(rank, stream) for rank, stream in every) == shown


def test_by_default_everything_is_shown_as_it_is():
    assert Streams() == Streams(pick("0"), pick("0"), parse_local_ranks("", ""))
    assert Streams().shown(5, Std.ERR) is PLAIN
    assert Streams().filters(Std.OUT) == Streams().filters(Std.ERR) == ()
    assert Selection().has(0, Std.OUT) is False


def test_filters_are_of_one_stream():
    streams = Streams(stdout_filters=("a",), stderr_filters=("b",))
    assert (streams.filters(Std.OUT), streams.filters(Std.ERR)) == (("a",), ("b",))


@pytest.mark.parametrize(
    ("template", "prefix"),
    [
        ("", "[default3]:"),
        ("[${rank}]: ", "[11]: "),
        ("${hostname}:${rank}: ", "n1:11: "),
        ("${role_name}/$local_rank ${unknown} $ $$ ${", "default/3 ${unknown} $ $ ${"),
    ],
)
def test_the_prefix(template, prefix):
    streams = Streams(prefix_template=template)
    assert streams.prefix(role="default", rank=11, local_rank=3, host="n1") == prefix
