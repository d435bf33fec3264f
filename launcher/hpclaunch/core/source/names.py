"""What the source of a program tells without running it: names, conditions, and ends of blocks.

The possible strings of an expression are returned as a set. None means that they are known only
when the program runs.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence


class Names:
    """The names of one file: which ones stand for os.environ, and which strings a name may have."""

    def __init__(self, tree: ast.Module) -> None:
        self.environs: set[str] = set()  # names for os.environ
        self.setters = {"putenv", "unsetenv"}  # names of functions that set a variable
        self._tree = tree
        self._strings: dict[str, set[str] | None] | None = None  # by name; None: not read yet

    def imported(self, alias: ast.alias) -> None:
        """Note an import such as `from os import environ as env`. The module may also be another
        one that has imported the name from os.
        """
        if alias.name in ("environ", "environb"):
            self.environs.add(alias.asname or alias.name)
        elif alias.name == "*":
            self.environs.add("environ")
        elif alias.name in self.setters:
            self.setters.add(alias.asname or alias.name)

    def is_environ(self, node: ast.expr) -> bool:
        """Whether an expression may be os.environ."""
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
            case ast.Constant(value="os.environ"):  # as in mock.patch.dict("os.environ")
                return True
        return False

    def strings(self, expression: ast.expr) -> set[str] | None:
        """Return the strings that an expression may be."""
        match expression:
            case ast.Constant(value=str() as text):
                return {text}
            case ast.Constant(value=bytes() as data):
                return {data.decode("ascii", "replace")}
            case ast.Name(id=name):
                if self._strings is None:
                    self._strings = _strings_by_name(self._tree)
                return self._strings.get(name)
        return None

    def keys(self, mapping: ast.expr) -> set[str] | None:
        """Return the keys that a mapping may have."""
        match mapping:
            case ast.Dict():
                pairs = zip(mapping.keys, mapping.values, strict=True)
                return _union(self.strings(k) if k else self.keys(v) for k, v in pairs)
            case ast.Call(func=ast.Name(id="dict")):
                return self.keys_of_arguments(mapping)
        return None

    def keys_of_arguments(self, call: ast.Call) -> set[str] | None:
        """Return the keys in the arguments of a call of dict() or update()."""
        named = ({k.arg} if k.arg else self.keys(k.value) for k in call.keywords)
        return _union([*map(self.keys, call.args), *named])


def truth(test: ast.expr, *, main: bool) -> bool | None:
    """Return the value of a condition if it is the same in every run; None if that is not known.

    `main`: the file is run as the program; otherwise it is imported.
    """
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
    """Whether a block ends in a return, raise, exit or the like, so that execution does not go on
    behind it.
    """
    match body[-1:]:
        case [ast.Raise() | ast.Return() | ast.Continue() | ast.Break()]:
            return True
        case [ast.Expr(value=ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)))]:
            return name in ("exit", "_exit", "quit")
    return False


def absolute(module: str, level: int, package: str) -> str:
    """Return the absolute name of the module that a file of `package` imports from.

    `level` is the number of dots before `module`. Returns "" if they lead out of the package.
    """
    if not level:
        return module
    parts = package.split(".")
    above = parts[: len(parts) - level + 1]
    return ".".join((*above, *filter(None, [module]))) if any(above) else ""


def _union(sets: Iterable[set[str] | None]) -> set[str] | None:
    """Return the union of the sets; None if one of them is None."""
    known: set[str] = set()
    for names in sets:
        if names is None:
            return None
        known |= names
    return known


def _strings_by_name(tree: ast.Module) -> dict[str, set[str] | None]:
    """Return, for every name that is bound anywhere in a file, the strings that it may have. None:
    it is also bound to something else.
    """
    found: dict[str, set[str] | None] = {}
    seen: set[ast.Name] = set()  # targets that are bound to strings only
    for node in ast.walk(tree):  # an assignment comes before the names in it
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
