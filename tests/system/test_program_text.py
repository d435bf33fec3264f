"""The imports that the text of a script shows."""

import pytest

from hpclaunch.system.shared.program_text import installed_imports, parse


def test_only_installed_modules_are_imported_in_advance():
    """The script's own and Python's own are imported by the workers."""
    steps = installed_imports(parse(b"import wave, numpy\nimport train\nimport torch.optim\n"))
    assert [step[:2] for step in steps] == [
        ("import", "numpy"),
        ("import", "torch.optim"),
        ("import", "torch._dynamo"),
    ]
    assert steps[0][2].endswith("numpy/__init__.py")


@pytest.mark.parametrize("text", [b"this is no Python", b"x = '\0'", b"(" * 100000])
def test_a_text_that_is_no_program(text):
    assert parse(text) is None
