"""What the documents name is there, and the commands that they show are understood."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from hpclaunch.cli import main, options, run

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(?:bash|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Before the launcher: a prompt, variables, and a step with its options
COMMAND = re.compile(r"^(?:\$ )?(?:srun (?:-\S+ )*)?hpclaunch (?=\S)(.*)$", re.MULTILINE)


def commands() -> list[str]:
    """The launcher's words in every shell block."""
    text = "\n".join("\n".join(BLOCK.findall(page.read_text())) for page in PAGES)
    found = COMMAND.findall(text.replace("\\\n", " "))
    return sorted({line.removesuffix(" &") for line in found if "options" not in line})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_are_named_exist(page: Path) -> None:
    """Scripts to start from, and links to other pages."""
    text = page.read_text()
    named = re.findall(r"\b(?:workers|sbatch)/\w+(?:\.py|\.sbatch|/)", text)
    assert not [name for name in set(named) if not (ROOT / name).exists()]
    linked = re.findall(r"\]\(([\w./-]+\.md)\)", text)
    assert not [name for name in set(linked) if not (page.parent / name).exists()]


@pytest.mark.parametrize("line", commands())
def test_a_command_that_is_shown(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = shlex.split(line.replace(" R ", " 0 "), comments=True)
    if words[0] == "doctor":
        return
    if words[0] != "sbatch":
        run.check(options.build_parser({}).parse_args(words))
        return
    for word in words:
        if word.endswith(".py"):
            (tmp_path / word).parent.mkdir(exist_ok=True)
            (tmp_path / word).touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))  # the command puts it in order
    assert main([word for word in words if word != "--submit"]) == 0
