"""The head's questions to this agent's workers, and their answers."""

from __future__ import annotations

from ..protocol.effects import AskWorkers, Effect
from ..protocol.model import Answer, Query


class Queries:
    """The queries of one round, which one head asks. At most one of each kind is open."""

    def __init__(self) -> None:
        self._open: tuple[Query, ...] = ()  # those of the last order
        self.answers: tuple[Answer, ...] = ()

    def obey(self, queries: tuple[Query, ...]) -> list[Effect]:
        """Ask the queries that are new in an order. Drop answers of kinds that it leaves out."""
        new = [query for query in queries if query not in self._open]
        kinds = {query.kind for query in queries}
        self._open = queries
        self.answers = tuple(each for each in self.answers if each.query.kind in kinds)
        return [AskWorkers(query) for query in new]

    def hear(self, answer: Answer) -> None:
        """Keep an answer in place of the earlier one of its kind."""
        if answer.query in self._open:
            others = (each for each in self.answers if each.query.kind is not answer.query.kind)
            self.answers = (*others, answer)
