"""The past of a launch for the page of its job: its nodes, its checkpoints, and what happened."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from ..core.protocol import facts, host_lists
from ..core.protocol.facts import Category
from ..core.protocol.model import NO_RANK
from ..core.protocol.values import field, value
from ..core.protocol.wording import plain, who
from .head_facts import DatedFact


class HappeningKind(str, Enum):
    FAULT = "fault"
    CHANGE = "change"  # a round ended on purpose
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
    link: str = ""  # an anchor of the page with more about it


@value(frozen=True)
class Save:
    at: float  # seconds since the epoch
    step: int | None


@value()
class LaunchPast:
    """A fold over the facts of the heads of a launch, in the order of time."""

    # By host: (since when, what it did)
    nodes: dict[str, list[tuple[float, Category]]] = field(default_factory=dict)
    saves: list[Save] = field(default_factory=list)
    happenings: list[Happening] = field(default_factory=list)
    out: set[str] = field(default_factory=set)  # hosts that are lost or cordoned

    def note(self, fact: facts.Fact, at: float) -> None:
        """Note a fact that was recorded at this time, in seconds since the epoch."""
        match fact:
            case facts.SeatUse(nodes=nodes):
                for category, hosts in nodes.items():
                    for host in host_lists.read(hosts):
                        self._note_use(host, category, at)
            case facts.NodeLost(host=host) | facts.HeadChanged(lost=host):
                self._leave(host, "lost", at)
            case facts.NodesCordoned(hosts=hosts):
                for host in hosts:
                    self._leave(host, "cordoned", at)
            case facts.NodeCameBack(host=host):
                self._come_back(host, at)
            case facts.RoundBegan(came=hosts):
                for host in hosts:
                    self._come_back(host, at)
            case facts.StragglerNamed(host=host, rank=rank):
                text = f"the others wait for {who(host, rank)}, step after step"
                of_rank = None if rank == NO_RANK else rank
                self._add(at, HappeningKind.STRAGGLER, text, host, of_rank)
            case facts.CheckpointSaved(step=step, age=age):
                save = Save(at - (age or 0.0), step)
                self.saves.append(save)
                of = "" if step is None else f" of step {step:,}"
                self._add(save.at, HappeningKind.SAVE, f"a checkpoint{of} is complete")

    def _note_use(self, host: str, category: Category, at: float) -> None:
        uses = self.nodes.setdefault(host, [])
        if not uses or uses[-1][1] is not category:
            uses.append((at, category))

    def _leave(self, host: str, how: str, at: float) -> None:
        if host not in self.out:
            self.out.add(host)
            self._add(at, HappeningKind.NODE, f"{host} is {how}", host)

    def _come_back(self, host: str, at: float) -> None:
        if host in self.out:
            self.out.discard(host)
            self._add(at, HappeningKind.NODE, f"{host} is back", host)

    def _add(
        self, at: float, kind: HappeningKind, text: str, host: str = "", rank: int | None = None
    ) -> None:
        self.happenings.append(Happening(at, kind, plain(text), host, rank))


def past_of(dated: Iterable[DatedFact]) -> LaunchPast:
    """Return the past of a launch by the facts of its heads, in the order of time."""
    past = LaunchPast()
    for at, fact in dated:
        past.note(fact, at)
    return past
