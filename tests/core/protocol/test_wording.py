"""Words that several messages share."""

import json
import os

import pytest

from hpclaunch.core.protocol.wording import as_bytes, for_console, harmless, harmless_json


def test_a_name_in_another_encoding_is_shown_as_it_is():
    name = b"gr\xf6\xdfe.pt"  # in Latin-1
    assert as_bytes(f"größe: {os.fsdecode(name)}") == "größe: ".encode() + name


def test_anything_can_be_shown():
    assert as_bytes("half of a pair: \ud83d") == b"half of a pair: \\ud83d"
    assert for_console("half of a pair: \ud83d") == b"half of a pair: \\ud83d"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (b"\x1b[31mred\x07\r", b"?[31mred??"),
        (b"\xc2\x9b31m", b"?31m"),  # the same, as one character
        (b"\x9b31m", b"?31m"),  # and as one byte, for a terminal in Latin-1
        ("a\u202ekcab\u2066".encode(), b"a?kcab?"),
        (b"a\x7f\x08\t.", b"a??\t."),
        ("größe, 大小, 🙂".encode(), "größe, 大小, 🙂".encode()),
        (b"gr\xf6\xdfe", b"gr\xf6\xdfe"),  # in Latin-1
    ],
)
@pytest.mark.parametrize("locale", ["utf-8", "ascii"])
def test_no_name_commands_a_terminal(name, shown, locale):
    assert for_console(f"no {name.decode(locale, 'surrogateescape')}\n") == b"no " + shown + b"\n"


def test_no_name_looks_like_a_message():
    text = "rank 0 failed\n  logs: logs\nhpclaunch: error: all is lost\n"
    assert for_console(text) == (b"rank 0 failed\n  logs: logs\n  hpclaunch: error: all is lost\n")
    assert harmless("a\nb\u2028c") == "a?b?c"


def test_json_on_a_terminal():
    text = '{"said":"a\x9b2J\x7f\u202eä\\u001b"}'
    assert harmless_json(text) == '{"said":"a\\u009b2J\\u007f\\u202eä\\u001b"}'
    assert json.loads(harmless_json(text)) == json.loads(text)
