"""Says why workers start cold."""

from __future__ import annotations


def changed_too_early(file: str, name: str, line: int) -> str:
    return f"{file} sets {name} in line {line}, before it imports torch"


def of_restart(kind: str, name: str, file: str, line: int, *, forked: bool) -> str:
    """Return the line about a worker that has become a new interpreter, or should have done so but
    was `forked` by a worker. For `kind` see `Restart` in worker/fork_server_messages.py.
    """
    reason = changed_too_early(file, name, line)
    if kind == "module":
        reason = f"line {line} of {file} leads to another module {name} than hpclaunch has loaded"
    if forked:
        return f"warning: {reason}, in a process that a worker has forked: start with --cold"
    return f"cold start: {reason}"
