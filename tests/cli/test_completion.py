"""--print-completion: what real shells make of it."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from hpclaunch.cli import COMMANDS, completion
from hpclaunch.cli.options import build_parser

SHELLS = ("bash", "zsh", "tcsh", "fish")


def needs(shell):
    missing = shutil.which(shell) is None
    return pytest.param(shell, marks=pytest.mark.skipif(missing, reason=f"{shell} is missing"))


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Return a directory with a script for each shell, and something to complete."""
    directory = tmp_path_factory.mktemp("completion")
    for shell in SHELLS:
        (directory / shell).write_text(completion.script(build_parser({}), shell))
    (directory / "train.py").touch()
    (directory / "logs-of-mine").mkdir()
    return directory


def test_it_is_printed(in_process, tmp_path, written):
    done = in_process("--print-completion", "bash", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (written / "bash").read_text() + "\n"


@pytest.mark.starts
@pytest.mark.parametrize("shell", [needs("bash"), needs("zsh"), needs("fish")])
def test_the_shell_takes_it(written, shell):
    done = subprocess.run([shell, "-n", shell], cwd=written, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


CASES = {
    ("--max-rest",): {"--max-restarts"},
    ("st",): {"stacks", "status", "stop"},
    ("tr",): {"train.py"},
    ("--nproc", "2", "tra"): {"train.py"},
    ("--progress", "o"): {"on", "off"},
    ("logs", "--f"): {"--follow"},
    ("logs", "logs-"): {"logs-of-mine"},
    ("sbatch", "--sub"): {"--submit"},
}


@pytest.mark.starts
@pytest.mark.parametrize("words", CASES, ids=" ".join)
def test_bash_completes_with_it(written, words):
    words_so_far = " ".join(("hpclaunch", *words))
    complete = (
        f"source ./bash; COMP_WORDS=({words_so_far}); COMP_CWORD={len(words)}; "
        "_shtab_hpclaunch 2>/dev/null; echo ${COMPREPLY[@]}"
    )
    done = subprocess.run(["bash", "-c", complete], cwd=written, capture_output=True, text=True)
    assert set(done.stdout.split()) == CASES[words]


@pytest.mark.starts
@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is missing")
@pytest.mark.parametrize("words", CASES, ids=" ".join)
def test_fish_completes_with_it(written, words):
    """Fish also offers names that contain the letters elsewhere."""
    ask = f"source ./fish; complete -C 'hpclaunch {' '.join(words)}'"
    done = subprocess.run(["fish", "-N", "-c", ask], cwd=written, capture_output=True, text=True)
    found = {line.partition("\t")[0].rstrip("/") for line in done.stdout.splitlines()}
    assert found >= CASES[words], done.stderr


# A key of an interactive shell completes the line, and says what it is then.
SETUP = """
autoload -U compinit
compinit -u -D
eval "$(cat zsh)"
show() { zle complete-word; print -r -- "$BUFFER" >>shown; zle kill-whole-line }
zle -N show
bindkey '^T' show
touch ready
"""
COMPLETE = r"""
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell "source ./setup"
until [[ -e ready ]]; do sleep 0.1; done
: >shown
for words; do zpty -w -n shell "hpclaunch $words"$'\x14'; done
until (( $(wc -l <shown) == ARGC )); do sleep 0.1; done
zpty -d shell
"""
OF_ONE = [words for words, found in CASES.items() if len(found) == 1]


@pytest.mark.starts
@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is missing")
def test_zsh_completes_with_it(written):
    """All but those of which there are several."""
    (written / "setup").write_text(SETUP)
    command = ["zsh", "-f", "-c", COMPLETE, "zsh", *(" ".join(words) for words in OF_ONE)]
    done = subprocess.run(command, cwd=written, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    shown = [line.rstrip(" /") for line in (written / "shown").read_text().splitlines()]
    assert shown == [" ".join(("hpclaunch", *words[:-1], *CASES[words])) for words in OF_ONE]


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_knows_the_options(written, shell):
    said = (written / shell).read_text()
    assert "max-restarts" in said
    assert shell == "tcsh" or all(name in said for name in COMMANDS)


def test_as_torchrun_it_has_no_commands():
    said = completion.script(build_parser({}, in_place_of="torchrun"), "bash")
    assert "complete -o bashdefault -F _shtab_torchrun torchrun" in said
    assert "stacks" not in said
