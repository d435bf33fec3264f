"""The output of `scontrol show`. Standard library only: helpers that start quickly use it."""

from __future__ import annotations

import os
import subprocess

LIMIT = 10.0  # seconds for one question


def shown(kind: str, name: str) -> dict[str, str]:
    """Return the fields of one thing; {} if Slurm does not answer."""
    return fields_of(said(kind, "-o", name))


def node_address(node: str) -> str:
    """Return the address or name at which Slurm reaches a node; "" if that is not known."""
    if "SLURM_JOB_ID" not in os.environ:
        return ""
    for alias in os.environ.get("SLURM_NODE_ALIASES", "").split(","):
        name, _, address = alias.partition(":")
        if name == node:
            return address.rpartition(":")[0]
    return shown("node", node).get("NodeAddr", "")


def said(*words: str) -> str:
    """Return the answer of Slurm; "" if there is none."""
    env = os.environ | {"SLURM_TIME_FORMAT": "%s"}  # show times in seconds since 1970
    command = ["scontrol", "show", *words]
    try:
        done = subprocess.run(command, capture_output=True, timeout=LIMIT, env=env, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.decode(errors="replace")


def fields_of(text: str) -> dict[str, str]:
    """Return the fields of the first line: a heterogeneous job has several.

    The user chooses the job's name, before UserId, and its command and comment, at the end. These
    may look like fields.
    """
    line = text.partition("\n")[0]
    _, _, of_user = line.partition(" UserId=")
    pairs = (word.partition("=") for word in (of_user or line).split())
    found: dict[str, str] = {}
    for name, _, value in pairs:
        found.setdefault(name, value)
    return found
