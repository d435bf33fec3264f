"""The shares of a round: how its seats spent it, by the reports of all agents on their workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from ..protocol.facts import Category, RoundShares, SeatSeconds
from ..protocol.model import Doing, Spent
from ..protocol.values import value

CATEGORIES = {
    Doing.START: Category.START,
    Doing.IMPORTS: Category.IMPORTS,
    Doing.RENDEZVOUS: Category.RENDEZVOUS,
    Doing.LOADING: Category.LOADING,
    Doing.TRAINING: Category.TRAINING,
    Doing.SAVING: Category.SAVING,
}
LAST_FIRST = (
    *(Category.END, Category.TRAINING, Category.SAVING, Category.LOADING),
    *(Category.RENDEZVOUS, Category.IMPORTS, Category.START),
)
BEFORE_STEPS = (Category.START, Category.IMPORTS, Category.RENDEZVOUS, Category.LOADING)


@value(frozen=True)
class RoundPart:
    """One agent in a round."""

    spent: Spent
    seats: float
    done: bool = False  # all its workers have ended with 0
    left: tuple[float, ...] = ()  # when workers ended with 0, in seconds after the round began
    workers: int = 1

    def idle(self, until: float) -> float:
        """Return the mean number of seconds since its workers ended; 0 once all have ended, since
        `spent` is then complete.
        """
        left = () if self.done else self.left
        return sum(max(0.0, until - at) for at in left) / self.workers


def sums(spent: Iterable[Mapping[Category, float]]) -> SeatSeconds:
    found: SeatSeconds = {}
    for each in spent:
        for category, seconds in each.items():
            found[category] = found.get(category, 0.0) + seconds
    return found


def scaled(spent: Mapping[Category, float], by: float) -> SeatSeconds:
    return {category: seconds * by for category, seconds in spent.items() if seconds * by}


def split(part: RoundPart, elapsed: float, cut: float) -> SeatSeconds:
    """Return how one seat spent a round, in seconds whose sum is `elapsed`. The cause of its end
    occurred `cut` seconds after it began, and was detected later.
    """
    spent = {CATEGORIES[Doing(i)]: each / 1000 for i, each in enumerate(part.spent.times)}
    rest = Category.END if part.done else Category.DETECTION
    now = CATEGORIES.get(part.spent.doing, rest)
    idle = part.idle(elapsed)
    spent[now] = spent.get(now, 0.0) + elapsed - idle - sum(spent.values())
    # A sum that is too large was reported late, or measured on a faster clock.
    spent[now] = max(0.0, spent[now])
    spent.pop(Category.DETECTION, None)
    until = elapsed if part.done else cut - part.idle(cut)
    _take(spent, dict.fromkeys((now, *LAST_FIRST)), sum(spent.values()) - until)
    if idle:
        spent[Category.END] = idle
    if not part.done:
        spent[Category.DETECTION] = max(0.0, elapsed - sum(spent.values()))
    return spent


def _take(spent: SeatSeconds, order: Iterable[Category], seconds: float) -> None:
    """Subtract `seconds` in all: from the first category of `order` until it is 0, and so on."""
    for category in order:
        taken = min(max(0.0, seconds), spent.get(category, 0.0))
        if taken:
            spent[category] -= taken
            seconds -= taken


def together(parts: Sequence[RoundPart], elapsed: float, cut: float) -> RoundShares:
    """Return how all agents of a round spent its `elapsed` seconds. The cause of its end occurred
    `cut` seconds after it began.

    Agents without data are assumed to match the others. While one agent saves, all others wait.
    """
    cut = min(elapsed, max(0.0, cut))
    known = [part for part in parts if part.spent.times]
    total, there = sum(part.seats for part in parts), sum(part.seats for part in known)
    if not there:  # where others have GPUs, an agent without them has no seats
        spent = split(RoundPart(Spent(), 1.0), elapsed, cut)
        return RoundShares(elapsed, scaled(spent, total))
    splits = [(part, split(part, elapsed, cut)) for part in known]
    saving = max(spent.get(Category.SAVING, 0.0) for _, spent in splits)
    begins = []
    for _, spent in splits:
        waits = min(saving - spent.get(Category.SAVING, 0.0), spent.get(Category.TRAINING, 0.0))
        if waits > 0:
            spent[Category.TRAINING] -= waits
            spent[Category.SAVING] = spent.get(Category.SAVING, 0.0) + waits
        if spent.get(Category.TRAINING, 0.0) > 0:
            begins.append(sum(spent.get(category, 0.0) for category in BEFORE_STEPS))
    found = sums(scaled(spent, part.seats) for part, spent in splits)
    found = scaled(found, total / there)
    return RoundShares(elapsed, found, (min(begins), cut) if begins else None)


@value(frozen=True)
class Holder:
    """An agent, which has seats. Without `workers`, it has not reported."""

    node: int
    gpus: tuple[str, ...] = ()  # UUIDs
    workers: int = 0


def seats_of(agents: Sequence[Holder]) -> list[float]:
    """Return the number of seats of each agent. A GPU that several agents see is divided among
    them. An agent that has not reported has as many as the others on average; or none, if agents
    share GPUs and another one on its node has reported.
    """
    seen = Counter(gpu for agent in agents for gpu in agent.gpus)

    def count(agent: Holder) -> float:
        return sum(1 / seen[gpu] for gpu in agent.gpus) if seen else float(agent.workers)

    known = [agent for agent in agents if agent.workers]
    mean = sum(map(count, known)) / len(known) if known else 1.0
    sharing = {agent.node for agent in known} if any(n > 1 for n in seen.values()) else ()
    others = [0.0 if agent.node in sharing else mean for agent in agents]
    return [count(a) if a.workers else other for a, other in zip(agents, others, strict=True)]
