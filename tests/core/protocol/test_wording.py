"""Words that several messages share."""

import os

from hpclaunch.core.protocol.wording import as_bytes


def test_a_name_in_another_encoding_is_shown_as_it_is():
    name = b"gr\xf6\xdfe.pt"  # in Latin-1
    assert as_bytes(f"größe: {os.fsdecode(name)}") == "größe: ".encode() + name


def test_anything_can_be_shown():
    assert as_bytes("half of a pair: \ud83d") == b"half of a pair: \\ud83d"
