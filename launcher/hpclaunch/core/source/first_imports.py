"""The first imports in the text of a script, and the variables that it sets before them.

The results only save time: a worker that was started warm detects by itself whether it must become
a new interpreter.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Container, Iterator, Mapping

# torch imports its compiler for the first optimizer, whether or not it is used.
COMPILER = "torch._dynamo"
READING = ("get", "items", "keys", "values", "copy", "__getitem__")  # methods of os.environ
SETTING = ("putenv", "unsetenv", "load_dotenv", "read_env")
RUNNING = ("import_module", "__import__", "exec", "run_path", "run_module")  # they run other code


def is_plain(tree: ast.AST, python: Container[str]) -> bool:
    """Return whether a script, or a part of it, imports only modules of the standard library, whose
    names are in `python`.
    """
    for node in ast.walk(tree):
        match node:
            case ast.Import() | ast.ImportFrom() if not _is_of(python, node):
                return False
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in RUNNING:
                return False
    return True


def first_change(
    tree: ast.Module,
    python: Container[str],
    matters: Callable[[str], bool],
    environ: Mapping[str, str],
) -> tuple[str, int] | None:
    """Return the first variable that `matters` and that the script changes before any import that
    may import torch, with its line. Only statements at the top level of the script count.
    """
    for statement in _certain(tree.body):
        if not is_plain(statement, python):
            return None
        for name, value in _changes(statement, environ):
            if matters(name) and environ.get(name) != value:
                return name, statement.lineno
    return None


def first_imports(tree: ast.Module) -> list[tuple[str, str]]:
    """Return the modules that a script always imports, in order, and the names that it imports from
    each: (module, "") or (module, name). If the script sets environment variables, its imports may
    depend on them: then return at most COMPILER.
    """
    found: dict[tuple[str, str], None] = {}
    if not any(map(_sets_variables, ast.walk(tree))):
        for statement in _certain(tree.body):
            match statement:
                case ast.Import(names=names):
                    found |= {(alias.name, ""): None for alias in names}
                case ast.ImportFrom(module=str() as module, names=names, level=0):
                    found[module, ""] = None
                    found |= {(module, alias.name): None for alias in names if alias.name != "*"}
    if _optimizes(tree):
        found[COMPILER, ""] = None
    return list(found)


def _is_of(python: Container[str], statement: ast.Import | ast.ImportFrom) -> bool:
    if isinstance(statement, ast.Import):
        names = [alias.name for alias in statement.names]
    else:
        names = ["" if statement.level else statement.module or ""]
    return all(name.partition(".")[0] in python for name in names)


def _changes(statement: ast.stmt, environ: Mapping[str, str]) -> Iterator[tuple[str, str | None]]:
    """Yield each variable that a statement sets by a literal name; its value is None if unknown."""
    match statement:
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                match target:
                    case ast.Subscript(value=owner, slice=ast.Constant(value=str() as name)):
                        if _is_environ(owner):
                            yield name, _text(value)
        case ast.Expr(
            value=ast.Call(
                func=ast.Attribute(value=owner, attr="setdefault"),
                args=[ast.Constant(value=str() as name), value],
            )
        ) if _is_environ(owner):
            yield name, environ.get(name, _text(value))


def _text(value: ast.expr) -> str | None:
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else None


def _is_environ(node: ast.expr) -> bool:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name == "environ"
    return False


def _optimizes(tree: ast.Module) -> bool:
    """Return whether a script uses an optimizer, or a trainer that may have one."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name):
                if "optim" in name.lower() or "Trainer" in name:
                    return True
    return False


def _certain(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements that are always executed, including those under `__main__`."""
    for statement in body:
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                pass
            case ast.If(
                test=ast.Compare(
                    left=ast.Name(id="__name__"),
                    ops=[ast.Eq()],
                    comparators=[ast.Constant(value="__main__")],
                )
            ):
                yield from _certain(statement.body)
            case _:
                yield statement


def _sets_variables(node: ast.AST) -> bool:
    """Return whether a part of a script may set environment variables."""
    match node:
        case ast.ImportFrom(module="os", names=names):
            return any(a.asname is not None and a.name in ("environ", *SETTING) for a in names)
        case ast.Subscript(value=owner, ctx=ast.Store() | ast.Del()):
            return _is_environ(owner)
        case ast.Call(func=ast.Attribute(value=owner, attr=name)) if _is_environ(owner):
            return name not in READING
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)):
            return name in SETTING
    return False
