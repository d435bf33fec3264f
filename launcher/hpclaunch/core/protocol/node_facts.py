"""The facts of one node: what an agent finds beside the workers' rounds, whoever leads.

`host` is the node. Where a program has explained a failure, `why` is its text for people.
"""

from __future__ import annotations

from .values import value

# The processes beside the agent


@value(frozen=True)
class HelperEnded:
    """A process of the agent has ended before it was asked to."""

    host: str
    does: str  # what it is for, in words
    costs: str  # what may be lost with it, in words; "": nothing
    was_killed: bool  # from outside; else it has failed
    is_replaced: bool


@value(frozen=True)
class ProcessContinued:
    """Somebody had stopped a process with a signal, and it was made to continue."""

    host: str
    process: str  # "template process"


@value(frozen=True)
class CheckpointSearchStalled:
    """The process that searches for checkpoints does not answer, and is replaced."""

    host: str
    does: str  # as above
    where: str  # --checkpoint-dir


@value(frozen=True)
class CheckpointDirSuggested:
    """Without --checkpoint-dir, the script has saved a checkpoint itself."""

    host: str
    where: str  # what --checkpoint-dir could be
    path: str  # of the checkpoint


NodeFact = HelperEnded | ProcessContinued | CheckpointSearchStalled | CheckpointDirSuggested
