"""Tests of the console lines about one node."""

import pytest

from hpclaunch.core.protocol.node_facts import (
    AnotherRun,
    AnotherRunKind,
    ColdCause,
    HelperEnded,
    LaunchNote,
    LaunchNoteKind,
    LogTrouble,
    LogTroubleKind,
    MpsStarted,
    TimeSlices,
    WorkerTurnedCold,
)
from hpclaunch.core.protocol.process_kinds import ProcessKind
from hpclaunch.observe.node_console import LAUNCH_NOTES, words_of_another_run, words_of_node


def turned_cold(cause, name, *, is_impossible=False):
    fact = WorkerTurnedCold("n0", cause, name, "train.py", 7, is_impossible=is_impossible)
    return words_of_node(fact)


def test_a_variable():
    assert turned_cold(ColdCause.VARIABLE, "OMP_NUM_THREADS") == (
        "cold start: train.py sets OMP_NUM_THREADS in line 7, before it imports torch"
    )


def test_a_module():
    assert turned_cold(ColdCause.MODULE, "csv") == (
        "cold start: line 7 of train.py imports another module csv than hpclaunch has loaded"
    )


def test_a_process_that_cannot_begin_anew():
    assert turned_cold(ColdCause.VARIABLE, "OMP_NUM_THREADS", is_impossible=True) == (
        "warning: train.py sets OMP_NUM_THREADS in line 7, before it imports torch, "
        "in a process that a worker has forked: start with --cold"
    )


def test_the_gpus_of_each_daemon():
    fact = MpsStarted("n0", (("GPU 0", "GPU 1"), ("GPU 2",)))
    assert (
        words_of_node(fact) == "on n0: MPS runs for GPU 0 and GPU 1, GPU 2; --mps off does without"
    )


@pytest.mark.parametrize(
    ("advice", "end"), [("Start fewer", ": too many. Start fewer"), ("", ": too many")]
)
def test_why_gpus_are_shared_without_mps(advice, end):
    fact = TimeSlices("n0", ("GPU 0",), "too many", advice)
    assert words_of_node(fact) == f"on n0: GPU 0: shared by time slices, without MPS{end}"


@pytest.mark.parametrize("kind", ProcessKind)
def test_every_process_has_a_name(kind):
    text = words_of_node(HelperEnded("n0", kind, was_killed=True, is_replaced=True))
    assert text.startswith("the ")
    assert " on n0 was killed and replaced" in text


def test_numbers_in_notes_have_their_nouns():
    details = {"asked": "2", "spares": 1, "nodes": 3}
    note = LaunchNote("n1", LaunchNoteKind.SPARES, details)
    assert words_of_node(note) == "--nnodes 2: 1 spare among the 3 nodes"


def test_options_without_effect():
    details = {"--requeue": "there is no Slurm", "--rdzv-conf timeout": ""}
    note = LaunchNote("n1", LaunchNoteKind.WITHOUT_EFFECT, {**details})
    text = "without effect here: --requeue (there is no Slurm); --rdzv-conf timeout"
    assert words_of_node(note) == text


@pytest.mark.parametrize(
    ("fact", "text"),
    [
        (
            AnotherRun(AnotherRunKind.LINGERS, "71"),
            "job 71 waits for its preemption, to be started again by Slurm",
        ),
        (
            AnotherRun(AnotherRunKind.BY_SCRIPT, "71"),
            "job 71 is to be requeued by its script: there is no scontrol here",
        ),
        (AnotherRun(AnotherRunKind.FOLLOWS, "71", 2), "job 71 is requeued: run 2 follows"),
        (AnotherRun(AnotherRunKind.REFUSED, "71", why="no"), "job 71 was not requeued: no"),
        (
            AnotherRun(AnotherRunKind.CHAIN_STAYS, "70", why="no"),
            "the rest of array 70 was not cancelled: no",
        ),
    ],
)
def test_another_run(fact, text):
    assert words_of_another_run(fact) == text


def test_every_note_on_a_launch_has_a_message():
    assert LAUNCH_NOTES.keys() == set(LaunchNoteKind) - {LaunchNoteKind.WITHOUT_EFFECT}


@pytest.mark.parametrize(
    ("kind", "what", "why", "text"),
    [
        (
            LogTroubleKind.FILES,
            "facts.jsonl",
            "No space: /l",
            "on n1: cannot write facts.jsonl: No space: /l",
        ),
        (
            LogTroubleKind.DISK,
            "/l",
            "",
            "on n1: the disk is full, and what workers write is lost: /l",
        ),
        (
            LogTroubleKind.DUPLICATES,
            "/l/f",
            "No space",
            "on n1: lines are no longer duplicated to /l/f: No space",
        ),
        (
            LogTroubleKind.STALLED,
            "7",
            "",
            "on n1: 7 messages of the launcher are lost: the log directory has stalled",
        ),
        (
            LogTroubleKind.STALLED,
            "1",
            "",
            "on n1: 1 message of the launcher is lost: the log directory has stalled",
        ),
    ],
)
def test_what_cannot_be_written(kind, what, why, text):
    assert words_of_node(LogTrouble("n1", kind, what, why)) == text
