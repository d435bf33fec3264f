"""The past of a launch, as a page shows it."""

from __future__ import annotations

from enum import Enum

from ..protocol.facts import Category
from ..protocol.values import value


class HappeningKind(str, Enum):
    FAULT = "fault"
    CHANGE = "change"  # a round ended because somebody wanted that
    SAVE = "save"
    NODE = "node"
    STRAGGLER = "straggler"


@value(frozen=True)
class Happening:
    """Something that happened at one time."""

    at: float  # seconds since the epoch
    kind: HappeningKind
    text: str
    host: str = ""
    rank: int | None = None
    link: str = ""  # an anchor of the page where more is said


@value(frozen=True)
class Save:
    """A checkpoint that is complete."""

    at: float  # seconds since the epoch
    step: int | None


@value(frozen=True)
class LaunchPast:
    """The past of a launch: what its nodes did, and what happened, in the order of time."""

    nodes: dict[str, tuple[tuple[float, Category], ...]]  # by host: from each time on
    saves: tuple[Save, ...] = ()
    happenings: tuple[Happening, ...] = ()
