"""What a script that was never launched is certain to import, as far as its text shows."""

from __future__ import annotations

import ast

from .names import Names, truth

# With an optimizer torch imports its compiler, be it ever used or not.
COMPILER = "torch._dynamo"


def first_imports(tree: ast.Module) -> list[tuple[str, str]]:
    """The modules that a script imports in any case, in order, and of each the names that it takes
    from them: (module, "") or (module, name). A script that sets variables of its environment may
    mean them for its imports: of such a one only what torch imports for itself.
    """
    found: dict[tuple[str, str], None] = {}
    if not _sets_variables(tree):
        _collect(tree.body, found)
    if _optimizes(tree):
        found[COMPILER, ""] = None
    return list(found)


def _optimizes(tree: ast.Module) -> bool:
    """Or leaves it to a trainer of somebody else's."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name):
                if "optim" in name.lower() or "Trainer" in name:
                    return True
    return False


def _collect(body: list[ast.stmt], found: dict[tuple[str, str], None]) -> None:
    for statement in body:
        match statement:
            case ast.Import(names=names):
                found |= {(alias.name, ""): None for alias in names}
            case ast.ImportFrom(module=str() as module, names=names, level=0):
                found[module, ""] = None
                found |= {(module, alias.name): None for alias in names if alias.name != "*"}
            case ast.If(test=test) if truth(test, main=True):
                _collect(statement.body, found)


def _sets_variables(tree: ast.Module) -> bool:
    """Or may do so."""
    names = Names(tree)
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module="os"):
                for alias in node.names:
                    names.imported(alias)
    for node in ast.walk(tree):
        match node:
            case ast.Subscript(value=value, ctx=ast.Store() | ast.Del()) if names.is_environ(value):
                return True
            case ast.Call(func=ast.Attribute(value=owner, attr=name)) if names.is_environ(owner):
                if name not in ("get", "items", "keys", "values", "copy", "__getitem__"):
                    return True
            case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)) if (
                name in names.setters or name in ("load_dotenv", "read_env")
            ):
                return True
    return False
