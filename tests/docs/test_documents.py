"""The documents are right: files and sections that they name exist, every page can be found, and
the commands and options that they show are understood."""

from __future__ import annotations

import argparse
import importlib
import re
import shlex
import sys
from pathlib import Path

import pytest

from hpclaunch.cli import COMMANDS, main, options, run
from hpclaunch.cli.parser import Parser
from hpclaunch.core.ending.table import ENDS, Code, NextRun
from hpclaunch.core.protocol.facts import CordonKind, EndReason, LeftoverStep
from hpclaunch.core.protocol.model import EXIT_SAVED, Origin
from hpclaunch.core.protocol.node_facts import (
    ColdCause,
    LaunchNoteKind,
    LogTroubleKind,
    NotifyTrouble,
)
from hpclaunch.core.protocol.process_kinds import ProcessKind
from hpclaunch.core.protocol.timing import DEFAULTS, PATIENT_LOSS
from hpclaunch.core.protocol.values import fields, replace
from hpclaunch.system.logs.fact_files import KINDS

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
DOCS = ROOT / "docs"
INNER = (Origin.SIGTERM, Origin.DRAIN)  # no verdict has it in the end
INDEX = DOCS / "README.md"
PAGES = [
    README,
    *(ROOT / name for name in ("CONTRIBUTING.md", "CHANGELOG.md", "bench/results/README.md")),
    *sorted(DOCS.glob("*.md")),
]
BLOCK = re.compile(r"^```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Before the launcher: a step with its options
COMMAND = re.compile(r"^(?:srun (?:-\S+ )*)?hpclaunch (?=\S)(.*)$", re.MULTILINE)
# A whole command in the middle of a sentence or a table, not one that is cut off with "..."
INLINE = re.compile(r"`(?:srun )?hpclaunch (--?[a-z][^`]*\.py[^`]*)`")
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)]*))?\)")
TABLE = re.compile(r"^\| option \|.*\n\| ---.*\n((?:\|.*\n)+)", re.MULTILINE)
VARIABLE = re.compile(r"\bHPCLAUNCH_[A-Z_]+\b")
# Whose options the tables of a page have, where they are not the launcher's; see also
# tests/cli/test_options.py for docs/options.md, and tests/cli/test_sbatch.py for docs/slurm.md.
OPTIONS_OF = {"install.md": "doctor", "slurm.md": "sbatch"}


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def pages(*, without: tuple[str, ...] = ()) -> pytest.MarkDecorator:
    chosen = [page for page in PAGES if name(page) not in without]
    return pytest.mark.parametrize("page", chosen, ids=name)


def commands() -> list[str]:
    """Return the launcher's words in every shell block, and of commands within the text."""
    texts = [page.read_text() for page in PAGES]
    blocks = "\n".join(block for text in texts for block in BLOCK.findall(text))
    found = COMMAND.findall(blocks.replace("\\\n", " "))
    found += [line for text in texts for line in INLINE.findall(text)]
    return sorted({line.removesuffix(" &") for line in found if "options" not in line})


def anchors(page: Path) -> set[str]:
    """Return the sections of a page, as links name them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def links(page: Path) -> list[tuple[Path, str]]:
    """The files of this repository to which a page links, each with a section or an empty one."""
    found = LINK.findall(re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL))
    return [
        ((page.parent / file).resolve() if file else page, section)
        for file, section in found
        if "://" not in file
    ]


@pages()
def test_files_that_are_named_exist(page: Path) -> None:
    """Scripts to start from, tests, and sources."""
    text = page.read_text()
    named = re.findall(r"\b(?:workers|sbatch)/\w+(?:\.py|\.sbatch|/)", text)
    named += re.findall(r"`((?:launcher|tests|bench|docs)/[\w./-]+)`", text)
    named += [f"launcher/hpclaunch/{path}" for path in re.findall(r"`(core/[\w./]+)`", text)]
    assert not [path for path in set(named) if not (ROOT / path).exists()]


@pages()
def test_links_lead_somewhere(page: Path) -> None:
    """Links name a file that exists, and a section that it has."""
    for path, section in links(page):
        assert path.exists(), f"{name(page)} links to {path}"
        assert not section or section in anchors(path), f"{name(page)} links to {path}#{section}"


def test_pages_that_the_code_names_exist() -> None:
    for source in (ROOT / "launcher/hpclaunch").rglob("*.py"):
        for page, section in re.findall(r"\b(docs/[\w-]+\.md)(?:#([\w-]+))?", source.read_text()):
            assert (ROOT / page).exists(), f"{name(source)} names {page}"
            assert not section or section in anchors(ROOT / page), f"{name(source)}: #{section}"


def test_every_page_is_in_the_index() -> None:
    linked = {path for path, _ in links(INDEX)}
    assert not {page for page in DOCS.glob("*.md") if page != INDEX} - linked
    assert INDEX in {path for path, _ in links(README)}
    assert ROOT / "CONTRIBUTING.md" in linked


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    listed = re.findall(r"- (docs/\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(name(page) for page in DOCS.glob("*.md"))


def test_nothing_is_said_to_be_published() -> None:
    """hpclaunch is installed from a checkout, or from a wheel that was built from one."""
    sites = sorted((ROOT / "launcher/hpclaunch/cli/sites").glob("*.toml"))
    for page in (*PAGES, *sites, ROOT / "pyproject.toml"):
        text = page.read_text()
        assert "pypi.org" not in text, name(page)
        for line in re.findall(r"pip3? (?:install|download) ([^`\n|;#]*)", text):
            by_name = re.search(r"(?:^|\s)'?hpclaunch\b", line)
            assert "--no-index" in line or not by_name, f"{name(page)}: pip install {line}"


@pytest.mark.parametrize("line", commands())
def test_a_command_that_is_shown(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = shlex.split(line.replace(" R ", " 0 "), comments=True)
    if words[0] in COMMANDS and words[0] != "sbatch":
        parser_of(words[0]).parse_args(words[1:])
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


def parser_of(command: str) -> argparse.ArgumentParser:
    module = importlib.import_module(f"hpclaunch.cli.{command}")
    parser: Parser = getattr(module, "PARSER", Parser)(prog=command)
    module.prepare_parser(parser)
    return parser


@pages(without=("docs/options.md",))
def test_options_in_tables_exist(page: Path) -> None:
    """A table of a command's own options has them all."""
    rows = "".join(TABLE.findall(page.read_text())).splitlines()
    named = {
        option
        for row in rows
        for option in re.findall(r"`(--?[a-z][a-z-]*)", row.replace("\\|", "/").split("|")[1])
    }
    if page.name not in OPTIONS_OF:
        assert not named - set(options.build_parser({}).options)
        return
    known = set(parser_of(OPTIONS_OF[page.name])._option_string_actions) - {"-h", "--help"}
    assert named == known


def rows(text: str) -> list[list[str]]:
    """Return the cells of each row of a table."""
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("|")
    ]


def section(page: Path, title: str) -> str:
    text = page.read_text()
    assert f"\n## {title}\n" in text
    return text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_figures_are_the_same_everywhere() -> None:
    """Rows of the comparison with torchrun, cell by cell."""
    measured = [row[1:] for row in rows((DOCS / "figures.md").read_text())]
    compared = [row[1:] for row in rows(section(README, "Compared with torchrun"))[2:]]
    assert len(compared) > 5
    assert not [row for row in compared if row not in measured]


def test_every_parser_is_fuzzed() -> None:
    """The page on security names the test, beside each thing that is read."""
    page = DOCS / "security.md"
    titles = ("What is read from outside", "Files that others may have made")
    for *row, tests in (row for title in titles for row in rows(section(page, title))[2:]):
        files = [ROOT / "tests" / name for name in re.findall(r"`(?:tests/)?(\S+\.py)`", tests)]
        is_fuzzed = any("mark.fuzz" in file.read_text() for file in files)
        assert is_fuzzed or not tests or tests.endswith("nothing is parsed"), row[0]


def test_times_that_the_page_on_faults_states() -> None:
    text = " ".join((DOCS / "faults.md").read_text().split())
    for said in (
        "| a node sends nothing, and the job can continue without it | "
        f"{DEFAULTS.loss:g} s after its last message (the loss timeout) |",
        "| the head sends nothing, and the job can continue without it | "
        f"{DEFAULTS.vote_lease:g} s after its last message |",
        "| a node sends nothing, and the job needs all of its nodes | "
        f"{PATIENT_LOSS:g} s after its last message (the loss timeout there) |",
        "| the head sends nothing, and the job needs all of its nodes | "
        f"{replace(DEFAULTS, loss=PATIENT_LOSS).vote_lease:g} s after its last message |",
        f"no new round could begin. After {DEFAULTS.silence_notice:g} s a line says so.",
        f"`--grace` seconds ({DEFAULTS.grace:g} by default)",
        f"gets SIGKILL after {DEFAULTS.stuck:g} s",
        f"`--wait-for-nodes` seconds ({DEFAULTS.wait:g} by default)",
        f"up to {DEFAULTS.goodbye:g} s longer",
    ):
        assert said in text


def test_every_variable_of_ours_is_described() -> None:
    sources = [*(ROOT / "launcher/hpclaunch").rglob("*.py"), *(ROOT / "workers").rglob("*.py")]
    used = {name for path in sources for name in VARIABLE.findall(path.read_text())}
    described = VARIABLE.findall(section(DOCS / "options.md", "Environment variables"))
    assert sorted(described) == sorted(used)


def test_every_command_is_in_the_table() -> None:
    cells = " ".join(row[0] for row in rows(section(DOCS / "options.md", "Commands")))
    assert not [command for command in COMMANDS if not re.search(rf"`[^`]*\b{command}\b", cells)]


def test_every_fact_is_described_with_all_of_its_fields() -> None:
    table = section(DOCS / "files.md", "The facts")
    described = {row[0].strip("`"): set(re.findall(r"`(\w+)`", row[2])) for row in rows(table)[2:]}
    assert described.keys() == KINDS.keys()
    for name, kind in KINDS.items():
        missing = {field.name for field in fields(kind)} - described[name]
        assert not missing, f"{name}: {missing}"
    nodes_own = (ColdCause, LaunchNoteKind, LogTroubleKind, NotifyTrouble, ProcessKind)
    for kinds in (CordonKind, EndReason, LeftoverStep, Origin, *nodes_own):
        assert not [each for each in kinds if f"`{each.value}`" not in table and each not in INNER]


def test_the_table_of_what_ends_a_job() -> None:
    described = {
        re.findall(r"`([^`]+)`", first)[0]: rest
        for first, *rest in rows(section(DOCS / "ending.md", "What ends a job"))[2:]
    }
    assert described.keys() == {origin.value for origin in Origin} - {Origin.SIGTERM.value}
    for name, (notice, code, next_run) in described.items():
        row = ENDS[Origin(name)]
        at_once = row.code == EXIT_SAVED or row.code is None
        in_time = "in time" if row.code is Code.LAST_SAVE else "never"
        assert notice == ("at once" if at_once else in_time), name
        match row.code:
            case None:
                assert code.startswith("none"), name
            case int():
                assert code == str(row.code), name
            case Code():
                assert code == row.code.value, name
        wanted = f"with `--requeue-on {row.kind.value}`"
        runs = {
            NextRun.NEVER: "never",
            NextRun.WANTED: wanted,
            NextRun.WANTED_OR_KILLED: f"{wanted}, or by Slurm itself",
        }
        assert next_run == runs[row.next_run], name
