"""Whole clusters, each from a seed, and the invariants after every step.

A failure names its seed and the command that shows what happened. Many more seeds:
`python tests/sim/replay.py --seeds 100000`.
"""

from __future__ import annotations

import pytest
from cluster_sim import check, replay
from stories import STORIES, transcript_of

from samples import quick_and_exhaustive

# About 300,000 steps, after each of which every law is checked; `make sim` makes 400 times as many.
BATCHES, SEEDS = 25, 10
QUICK = 1  # batch for `make quick`

# Runs that once broke a law, and what was wrong then.
REGRESSIONS = {
    15: "a connection that was made again at once counted as closed until the next beat",
    68: "a round began while an agent's fork server was being replaced",
    96: "trouble on one agent let the others leave while workers ran",
    144: "workers that had ended well were lost with their fork server, and nobody had failed",
    157: "an agent without a head woke up without end while its workers were stopped",
    259: "a worker that hung after it had saved was waited for until the end of the grace",
    285: "after a pause of the head, the first message was the occasion to give up the second",
    303: "the head never told itself the end if its own fork server was the slowest",
    371: "an agent whose workers survived SIGKILL never left",
    556: "with nobody lost, a job ended since the only node that was not cordoned broke",
    701530: "a late order of a dead head had its follower wait for the next one in vain",
    303308: "a head that led no more was waited for until the end of the vote lease",
    16195: "a head ended the job before a half that was cut off had come back to hear of it",
    18070: "a new head took an agent for dead that had only come later than it was asked about",
    35598: "a head took a later term, and those whose workers had ended left the world for it",
    82240: "a new head took for dead who was not there when another head had been lost for a while",
    51181: "a pause that was over once a checkpoint had been chosen lasted to the next beat",
    701613: "a notice took the place of one that an agent had not heard of yet",
    801222: "a search for what was saved had failed, and nobody went on",
    3000082: "a head was lost between its verdict and the end, and the next one restarted the job",
    295: "workers were done, and the head woke up without end for what they might still do",
    12455: "workers that went on while they were asked where they are hung for the stand-in",
    16615: "all were done, and the head woke up without end until Slurm said why it had ended them",
    17538: "Slurm had not answered, and was asked again only after the end of the job",
    23124: "somebody asked for a restart just before a hang was found",
    9494: "a job was over before its first step, and what is shown as training was loading",
    6807: "the time for which the workers of a single agent hung was called training",
    50561: "a worker that had ended trained on for the ledger, as long as others of its node did",
    62243: "a hang that was known counted as training where the user had the job start again",
    49148: "of two nodes, the clock of one was hardly known, and the other was called a straggler",
    98151: "workers had ended well, but not for the ledger, since their fork server did just then",
    2398: "after a pause, a worker's exit was the occasion to give up a head that was heard",
    10869: "a job ended since the stager of its head, a spare, was not there yet",
}


@pytest.mark.parametrize("batch", quick_and_exhaustive(range(BATCHES), QUICK))
def test_every_law_holds(batch):
    for seed in range(batch * SEEDS, (batch + 1) * SEEDS):
        check(seed)


@pytest.mark.parametrize("seed", REGRESSIONS, ids=REGRESSIONS.get)
def test_regression(seed):
    check(seed)


# What an operator has to find in them, in this order.
EXPECTED = {
    "a worker dies": ["restart 1 of 3", "starts ranks 0 to 1 of 6 in round 1"],
    "a node dies": ["the agent on n3 was lost", "continuing without n3: 2 nodes", "'n2': 0"],
    "a spare takes over": ["with n3 and without n2", "n3 starts ranks 2 to 3 of 4 in round 1"],
    "the head dies": ["n2 leads now", "n2 starts ranks 2 to 3 of 4 in round 2"],
    "the head is cut off and returns": [
        *("n2 holds its workers", "n2 leads now", "n1 no longer leads"),
        *("ending the round, to continue with n1", "n1 starts ranks 4 to 5 of 6", "'n1': 0"),
    ],
    "one head after the other": ["n2 leads", "n3 leads", "n4 leads", "{'n4': 0}"],
    "a partition heals": ["n3 leads now", "n1 no longer leads", "starts ranks 8 to 9 of 10"],
    "two halves": [
        "continuing without n3, n4",
        "n3 waits for a head",
        "n4 starts ranks 6 to 7 of 8",
    ],
    "the head of two is started again": [
        *("n2 waits for a head", "no majority for another", "n1 was started again, and has waited"),
        "exit codes {'n1': 1, 'n2': 1}",
    ],
    "a node returns": ["n3 is back", "continuing with n3: 3 nodes", "n3 starts ranks 4 to 5 of 6"],
}


@pytest.mark.parametrize("name", STORIES)
def test_a_story(name):
    text = "\n".join(transcript_of(STORIES[name]))
    at = 0
    for words in EXPECTED[name]:
        at = text.find(words, at)
        assert at >= 0, f"{words!r} is not there:\n{text}"


def test_a_seed_is_one_run():
    """The same to the last message: else a failure could not be replayed."""
    (first, failure), (second, _) = replay(29), replay(29)
    assert failure is None
    assert first.transcript == second.transcript
