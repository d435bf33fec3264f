"""What the source of a program tells without running it: names, conditions, where a block ends.

A set of strings is all that something may be. None stands for what only the run knows.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence


class Names:
    """Those of one file: what stands for os.environ, and the strings that a name may be."""

    def __init__(self, tree: ast.Module) -> None:
        self.environs: set[str] = set()
        self.setters = {"putenv", "unsetenv"}
        self._tree = tree
        self._bound: dict[str, set[str] | None] | None = None

    def imported(self, alias: ast.alias) -> None:
        """`from os import environ as env`, from os itself or from a module that has it so."""
        if alias.name in ("environ", "environb"):
            self.environs.add(alias.asname or alias.name)
        elif alias.name == "*":
            self.environs.add("environ")
        elif alias.name in self.setters:
            self.setters.add(alias.asname or alias.name)

    def is_environ(self, node: ast.expr) -> bool:
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                return False
            case ast.Attribute(attr=name):
                return name in ("environ", "environb")
            case ast.Name(id=name):
                return name in self.environs
            case ast.IfExp():
                return self.is_environ(node.body) or self.is_environ(node.orelse)
            case ast.BoolOp():
                return any(map(self.is_environ, node.values))
            case ast.Constant(value="os.environ"):  # of mock.patch
                return True
        return False

    def strings(self, expression: ast.expr) -> set[str] | None:
        match expression:
            case ast.Constant(value=str() as text):
                return {text}
            case ast.Constant(value=bytes() as data):
                return {data.decode("ascii", "replace")}
            case ast.Name(id=name):
                if self._bound is None:
                    self._bound = _bound(self._tree)
                return self._bound.get(name)
        return None

    def keys(self, mapping: ast.expr) -> set[str] | None:
        match mapping:
            case ast.Dict():
                pairs = zip(mapping.keys, mapping.values, strict=True)
                return _union(self.strings(k) if k else self.keys(v) for k, v in pairs)
            case ast.Call(func=ast.Name(id="dict")):
                return self.given(mapping)
        return None

    def given(self, call: ast.Call) -> set[str] | None:
        """The keys in what dict() or update() is called with."""
        named = ({k.arg} if k.arg else self.keys(k.value) for k in call.keywords)
        return _union([*map(self.keys, call.args), *named])


def truth(test: ast.expr, *, main: bool) -> bool | None:
    """Of a condition that is the same in every run of a file, as the program or imported."""
    match test:
        case ast.Constant(value=value):
            return bool(value)
        case ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING"):
            return False
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            known = truth(operand, main=main)
            return None if known is None else not known
        case ast.Compare(
            left=ast.Name(id="__name__"), ops=[op], comparators=[ast.Constant(value="__main__")]
        ):
            return {ast.Eq: main, ast.NotEq: not main}.get(type(op))
    return None


def leaves(body: Sequence[ast.stmt]) -> bool:
    """Whether what follows a block is not reached through it."""
    match body[-1:]:
        case [ast.Raise() | ast.Return() | ast.Continue() | ast.Break()]:
            return True
        case [ast.Expr(value=ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)))]:
            return name in ("exit", "_exit", "quit")
    return False


def absolute(module: str, level: int, package: str) -> str:
    """What a file of a package imports from; "" where there can be no such thing."""
    if not level:
        return module
    parts = package.split(".")
    above = parts[: len(parts) - level + 1]
    return ".".join((*above, *filter(None, [module]))) if any(above) else ""


def _union(sets: Iterable[set[str] | None]) -> set[str] | None:
    known: set[str] = set()
    for names in sets:
        if names is None:
            return None
        known |= names
    return known


def _bound(tree: ast.Module) -> dict[str, set[str] | None]:
    """Every name that is bound in a file, in whatever scope, and all the strings that it may be."""
    found: dict[str, set[str] | None] = {}
    seen: set[ast.Name] = set()  # where names are bound to strings
    for node in ast.walk(tree):  # statements come before what they are made of
        match node:
            case (
                ast.Assign(targets=[ast.Name() as target], value=value)
                | ast.AnnAssign(target=ast.Name() as target, value=value)
            ):
                values = [value]
            case (
                ast.For(target=ast.Name() as target, iter=sequence)
                | ast.comprehension(target=ast.Name() as target, iter=sequence)
            ):
                values = getattr(sequence, "elts", [None])  # of a tuple, a list or a set
            case ast.Name(id=name, ctx=ast.Store()) if node not in seen:
                found[name] = None
                continue
            case ast.arg(arg=name) | ast.alias(asname=str() as name) | ast.alias(name=name):
                found[name] = None
                continue
            case _:
                continue
        texts = {value.value if isinstance(value, ast.Constant) else None for value in values}
        strings = {text for text in texts if isinstance(text, str)}
        if strings == texts:
            seen.add(target)
            if (known := found.setdefault(target.id, set())) is not None:
                known |= strings
    return found
