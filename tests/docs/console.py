"""The commands that a document shows in its ```bash blocks, and what it says they print.

A ```text block that follows a ```bash block has what its commands print; without one it is nothing:

    what it prints         matches when only long numbers (ids, ports, times) and fractions differ
    ...                    any lines, or none; within a line, the rest of it or a part

A command that prints one number alone, as the id of a job, gives its name to the number: later
commands and lines mean the real one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ANY = "..."
NUMBER = r"\d+\.\d+|\d{4,}"
BLOCKS = re.compile(r"^```bash\n(.*?)^```$(?:\n\n^```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)
BUSY = "^hpclaunch: on .*: load: "  # what the launcher says of a host on which others compute


@dataclass(frozen=True)
class Step:
    command: str
    shown: tuple[str, ...]


def sections(path: Path) -> dict[str, list[Step]]:
    """Return the steps below every heading of the second level that has any."""
    found: dict[str, list[Step]] = {}
    for part in re.split(r"^## ", path.read_text(), flags=re.MULTILINE)[1:]:
        title, _, body = part.partition("\n")
        blocks = BLOCKS.findall(body)
        shown = [text for _, text in blocks if text]
        assert len(shown) == body.count("\n```text\n"), f"{title}: what prints each text?"
        if blocks:
            found[title] = [Step(command, tuple(text.splitlines())) for command, text in blocks]
    return found


def follow(steps: list[Step], run: Callable[[str], str], names: dict[str, str]) -> None:
    """Run the commands in turn; AssertionError shows what one printed in place of what is shown.

    `names` are words of the document and what they are called here.
    """
    for step in steps:
        said = run(_renamed(step.command, names)).splitlines()
        printed = [line for line in said if not re.match(BUSY, line)]
        if len(step.shown) == 1 and step.shown[0].isdecimal():
            assert len(printed) == 1, printed
            assert printed[0].isdecimal()
            names = names | {step.shown[0]: printed[0]}
            continue
        shown = [_renamed(line, names) for line in step.shown]
        if not re.fullmatch(_pattern(shown), "".join(f"{line}\n" for line in printed)):
            raise AssertionError("\n".join(["shown:", *shown, "", "printed:", *printed]))


def _renamed(text: str, names: dict[str, str]) -> str:
    for name, here in names.items():
        text = re.sub(rf"\b{re.escape(name)}\b", lambda _, here=here: here, text)
    return text


def _pattern(shown: list[str]) -> str:
    loose = {ANY: ".*"}
    lines = []
    for line in shown:
        if line == ANY:
            lines.append(r"(?:.*\n)*?")
            continue
        parts = re.split(rf"({re.escape(ANY)}|{NUMBER})", line)
        fixed = [re.escape(part) for part in parts[::2]]
        between = [loose.get(part, f"(?:{NUMBER})") for part in parts[1::2]]
        lines.append("".join(a + b for a, b in zip(fixed, [*between, ""], strict=True)) + r"\n")
    return "".join(lines)
