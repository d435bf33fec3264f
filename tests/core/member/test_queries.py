"""Tests of the queries that an agent passes on to its workers, and of the answers."""

from __future__ import annotations

from hpclaunch.core.member.round_notes import Queries
from hpclaunch.core.protocol.effects import AskWorkers
from hpclaunch.core.protocol.model import Answer, Evidence, Query, QueryKind, Sample, Vitals

SAMPLE, NEXT_SAMPLE = Query(QueryKind.SAMPLE, 1), Query(QueryKind.SAMPLE, 4)
VITALS, EVIDENCE = Query(QueryKind.VITALS, 2), Query(QueryKind.EVIDENCE, 3)
SAMPLED, NEXT_SAMPLED = Answer(SAMPLE, Sample(0.5)), Answer(NEXT_SAMPLE, Sample(0.6))
SEEN = Answer(VITALS, Vitals(()))


def test_a_query_is_asked_once_however_often_orders_repeat_it():
    queries = Queries()
    assert queries.obey((SAMPLE,)) == [AskWorkers(SAMPLE)]
    assert queries.obey((SAMPLE, VITALS)) == [AskWorkers(VITALS)]
    assert queries.obey((SAMPLE, VITALS)) == []
    assert queries.obey((NEXT_SAMPLE, VITALS)) == [AskWorkers(NEXT_SAMPLE)]


def test_an_answer_is_reported_until_there_is_a_newer_one_of_its_kind():
    queries = Queries()
    queries.obey((SAMPLE, VITALS))
    queries.hear(SAMPLED)
    queries.hear(SEEN)
    queries.obey((NEXT_SAMPLE, VITALS))
    assert set(queries.answers) == {SAMPLED, SEEN}
    queries.hear(NEXT_SAMPLED)
    assert set(queries.answers) == {SEEN, NEXT_SAMPLED}


def test_an_answer_is_dropped_once_an_order_has_no_query_of_its_kind():
    queries = Queries()
    queries.obey((SAMPLE, VITALS))
    queries.hear(SAMPLED)
    queries.hear(SEEN)
    queries.obey((VITALS,))
    assert queries.answers == (SEEN,)


def test_an_answer_that_nobody_waits_for_is_not_reported():
    queries = Queries()
    queries.obey((SAMPLE,))
    queries.obey((NEXT_SAMPLE,))
    queries.hear(SAMPLED)
    queries.hear(Answer(EVIDENCE, Evidence(())))
    assert queries.answers == ()
