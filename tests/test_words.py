"""The style of this project's prose that a machine can check: see "Words" in CONTRIBUTING.md."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROGRAMS = ("launcher", "bench", "docs", "sbatch", "tests", "workers")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/*.md"))]

# A docstring says on its own what a function does or what a class is.
OPENING = re.compile(
    r"(And|As|How|If|Its?|Not|Of|Or|That|Their|Then|There|These|They|Those|What|When|Where|Whether|"
    r"Which|Who|Whose)\b"
)
QUOTED = re.compile(r'"""' + OPENING.pattern)
OF_PROPERTIES = {"When", "Where", "Whether"}
# (words, what to write instead)
WORDS = (
    (r"told|tells?", "send, receive, report, record or show"),
    (r"no more(?! than| \w+s\b)", "no longer, or not any more"),
    (r"in vain", "without success, or what happened"),
    (r"(?:go|goes|went|gone|going) on", "continue"),
    (r"stands? (?:back|still|by)", "give way, make no progress, wait"),
    (
        r"brood|mourn\w*|bury|buried|stillborn|onlookers?|befall\w*|thereof|whereof|hitherto",
        "plain words",
    ),
)
BANNED = re.compile(r"\b(?:" + "|".join(words for words, _ in WORDS) + r")\b", re.IGNORECASE)
# "A process may be told apart from others": the only sense in which the verb is plain.
PLAIN = re.compile(r"\b(?:told|tells?) (?:\w+ ){0,4}apart\b", re.IGNORECASE)


def programs() -> list[Path]:
    return sorted(path for name in PROGRAMS for path in (ROOT / name).rglob("*.py"))


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def documented(path: Path) -> Iterator[tuple[ast.AST, int, str]]:
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield node, node.body[0].lineno, text


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    for _, line, text in documented(path):
        yield line, text


def is_property(node: ast.AST) -> bool:
    decorators = getattr(node, "decorator_list", [])
    return any("property" in ast.unparse(decorator) for decorator in decorators)


def comments(path: Path) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def suspects(pattern: re.Pattern[str]) -> list[Path]:
    """Return the programs in which the pattern is found anywhere: parsing takes longer."""
    return [path for path in programs() if pattern.search(path.read_text().replace("_", " "))]


def banned(text: str) -> Iterator[str]:
    for found in BANNED.finditer(PLAIN.sub("", text)):
        yield found.group()


def names(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree_of(path)):
        line = getattr(node, "lineno", 0)
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.arg(arg=name):
                yield line, name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield line, name


def where(path: Path, line: int, text: str) -> str:
    return f"{path.relative_to(ROOT)}:{line}: {text.strip().splitlines()[0]}"


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    wrong = [
        where(path, line, text)
        for path in suspects(QUOTED)
        for node, line, text in documented(path)
        if (found := OPENING.match(text))
        and not (found.group() in OF_PROPERTIES and is_property(node))
    ]
    assert not wrong, "\n".join(["say what it does, or what it is:", *wrong])


@pytest.mark.parametrize("of", [docstrings, comments])
def test_texts_use_the_words_of_the_field(of) -> None:
    wrong = [
        f"{where(path, line, text)}  [{word}]"
        for path in suspects(BANNED)
        for line, text in of(path)
        for word in banned(text)
    ]
    assert not wrong, "\n".join([advice(), *wrong])


def test_names_use_the_words_of_the_field() -> None:
    wrong = [
        where(path, line, name)
        for path in suspects(BANNED)
        for line, name in names(path)
        if any(banned(name.replace("_", " ")))
    ]
    assert not wrong, "\n".join([advice(), *wrong])


def test_pages_use_the_words_of_the_field() -> None:
    wrong = [
        f"{where(page, number, line)}  [{word}]"
        for page in PAGES
        for number, line in enumerate(page.read_text().splitlines(), 1)
        for word in banned(line)
    ]
    assert not wrong, "\n".join([advice(), *wrong])


def advice() -> str:
    return "\n".join(f"for {words!r} write {instead}" for words, instead in WORDS)
