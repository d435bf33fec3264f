"""The words of the facts of one node, as the user reads them on the console."""

from __future__ import annotations

import shlex

from ..core.protocol import node_facts as facts
from ..core.protocol.wording import CONTINUES


def words_of_node(fact: facts.NodeFact) -> str:
    """Return the message."""
    match fact:
        # The processes beside the agent
        case facts.HelperEnded():
            return _helper_ended(fact)
        case facts.ProcessContinued(host=host, process=process):
            return f"the {process} on {host} {CONTINUES}"
        case facts.CheckpointSearchStalled(host=host, does=does, where=where):
            silent = f"the process that {does} on {host} does not answer and is replaced"
            return f"{silent}: does the file system of {where} answer?"
        case facts.CheckpointDirSuggested(where=where, path=path):
            option = f"--checkpoint-dir {shlex.quote(where)}"
            newest = "would give all workers the newest of these at every start"
            return f"the script has saved {path} itself: {option} {newest}"


def _helper_ended(fact: facts.HelperEnded) -> str:
    done = "was killed" if fact.was_killed else "failed"
    replaced = "and replaced" if fact.was_killed else "and was replaced"
    how = f"{done} {replaced if fact.is_replaced else 'again and again, and is not replaced'}"
    costs = f": {fact.costs}" if fact.costs else ""
    return f"the process that {fact.does} on {fact.host} {how}{costs}"
