"""The past of a launch, by the facts that its heads have recorded."""

from __future__ import annotations

from crew import Crew

from hpclaunch.core.protocol.facts import (
    Category,
    CheckpointSaved,
    CordonKind,
    HeadChanged,
    NodeCameBack,
    NodeLost,
    NodesCordoned,
    RoundBegan,
    SeatUse,
    StragglerNamed,
    StragglerRecovered,
)
from hpclaunch.core.protocol.model import NO_RANK
from hpclaunch.observe.head_facts import facts_of_heads
from hpclaunch.observe.launch_past import Save, past_of
from hpclaunch.observe.ledger import Ledger, ledger_of

BEGAN = RoundBegan(1, "n[1-3]", 3, 3, ("n3",), (), False, (), "", "", (), "", 1, saves=False)
FACTS = [
    (1.0, SeatUse(0, {}, nodes={Category.START: "n[1-3]"})),
    (2.0, NodeLost("n2", "it was lost")),
    (2.0, NodeLost("n2", "another agent of it was")),
    (2.0, SeatUse(0, {}, nodes={Category.START: "n1,n3", Category.LOST: "n2"})),
    (3.0, NodeCameBack("n2")),
    (4.0, StragglerNamed("n2", 3, 0.5, 1.0, "")),
    (5.0, StragglerRecovered("n2", 3)),
    (6.0, NodesCordoned(0, ("n3",), CordonKind.FAILING)),
    (7.0, BEGAN),
    (9.0, CheckpointSaved("10.pt", 10, 100, 1.5)),
    (10.0, HeadChanged("n1", "n2", 1, 0.0)),
]


def test_what_happened_to_nodes_and_ranks():
    past = past_of(FACTS)
    assert [(h.at, h.kind.value, h.text) for h in past.happenings] == [
        (2.0, "node", "n2 is lost"),
        (3.0, "node", "n2 is back"),
        (4.0, "straggler", "the others wait for rank 3 on n2, step after step"),
        (6.0, "node", "n3 is cordoned"),
        (7.0, "node", "n3 is back"),
        (7.5, "save", "a checkpoint of step 10 is complete"),
        (10.0, "node", "n1 is lost"),
    ]
    assert past.saves == [Save(7.5, 10)]
    assert [(h.host, h.rank) for h in past.happenings if h.kind == "straggler"] == [("n2", 3)]


def test_a_node_that_is_a_straggler_is_no_rank():
    (happening,) = past_of([(4.0, StragglerNamed("n2", NO_RANK, 0.5, 1.0, ""))]).happenings
    assert (happening.host, happening.rank) == ("n2", None)


def test_what_each_node_did():
    assert past_of(FACTS).nodes == {
        "n1": [(1.0, Category.START)],
        "n2": [(1.0, Category.START), (2.0, Category.LOST)],
        "n3": [(1.0, Category.START)],
    }


def test_facts_one_by_one_and_all_at_once_give_the_same():
    """Reading a job with a failure and a takeover in between does not change the result."""
    crew = Crew("n0 n1 n2", fewest=1)
    crew.start(0, 1, 2)
    crew.until(20.0)
    crew.kill(0)
    crew.until(40.0)
    dated = facts_of_heads(crew.facts.values())
    ledger = Ledger()
    for at, fact in dated:
        ledger.note(fact, at)
        _ = ledger.launch("71.0")
    assert ledger == ledger_of(crew.facts.values())
    assert "n0 is lost" in [h.text for h in past_of(dated).happenings]
