"""The stages of a job, the transitions between them, and the goal of the agents in each."""

from __future__ import annotations

from enum import Enum

from .model import Goal


class Stage(Enum):
    RENDEZVOUS = "rendezvous"  # until every agent is ready for a round
    CHOOSING = "choosing"  # until all agents see the checkpoint that the round resumes from
    RUNNING = "running"
    STOPPING = "stopping"  # until no worker of the round is left anywhere
    ENDING = "ending"  # until every agent has the verdict
    ENDED = "ended"


NEXT = {
    Stage.RENDEZVOUS: {Stage.CHOOSING, Stage.ENDING},
    Stage.CHOOSING: {Stage.RUNNING, Stage.RENDEZVOUS, Stage.ENDING},
    Stage.RUNNING: {Stage.STOPPING, Stage.ENDING},
    Stage.STOPPING: {Stage.RENDEZVOUS, Stage.ENDING},
    Stage.ENDING: {Stage.ENDED},
    Stage.ENDED: set(),
}

GOAL = {
    Stage.RENDEZVOUS: Goal.WAIT,
    Stage.CHOOSING: Goal.WAIT,
    Stage.RUNNING: Goal.RUN,
    Stage.STOPPING: Goal.STOP,
    Stage.ENDING: Goal.END,
    Stage.ENDED: Goal.END,
}
