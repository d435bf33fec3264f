"""The causes for which rounds and jobs end, apart from their consequences."""

from __future__ import annotations

import pytest

from hpclaunch.core.protocol.facts import EndReason, LostNode, RoundEnded
from hpclaunch.core.protocol.model import OUT_OF_MEMORY, Culprit, Failure, Origin, Verdict
from hpclaunch.core.protocol.model import EndCause as Cause
from hpclaunch.observe.end_causes import of_failure, of_job, of_round
from hpclaunch.observe.job_report import end_report

TRACEBACK = """\
[rank1]: Traceback (most recent call last):
[rank1]:   File "/home/a/train.py", line 40, in <module>
[rank1]:     main()
[rank1]:   File "/home/a/train.py", line 12, in main
[rank1]:     raise ValueError("a bad batch")
[rank1]: ValueError: a bad batch"""
PEER = "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.1]:18818"

MISMATCH = """\
RuntimeError: Error(s) in loading state_dict for Net:
\tsize mismatch for a.weight
\tsize mismatch for b.weight
bye"""


def failed(tail="", code=1, signal=0, rank=1, **more):
    return Failure(0, rank, "n2", code, signal, more.pop("at", 10.0), tail, **more)


@pytest.mark.parametrize(
    ("failure", "cause", "text"),
    [
        pytest.param(failed(TRACEBACK), Cause.EXCEPTION, "ValueError: a bad batch", id="exception"),
        pytest.param(failed("MemoryError"), Cause.MEMORY, "MemoryError", id="no memory"),
        pytest.param(
            failed(f"step 4\n{OUT_OF_MEMORY}", 137, 9),
            Cause.MEMORY,
            OUT_OF_MEMORY,
            id="the kernel",
        ),
        pytest.param(failed("step 4", 137, 9), Cause.KILLED, "step 4", id="kill -9"),
        pytest.param(
            failed("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"),
            *(
                Cause.GPU_MEMORY,
                "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB",
            ),
            id="no GPU memory",
        ),
        *(
            pytest.param(failed(text), Cause.GPU_MEMORY, text, id=text)
            for text in (
                "RuntimeError: CUDA error: out of memory",
                "RuntimeError: CUDA driver error: out of memory",
                "HIP out of memory. Tried to allocate 2 GiB",
            )
        ),
        pytest.param(
            failed("ValueError: port 5 is free. Process 3 of 4 fails"),
            *(Cause.EXCEPTION, "ValueError: port 5 is free. Process 3 of 4 fails"),
            id="words that are also torch's",
        ),
        pytest.param(
            failed("cc1plus: fatal error: out of memory allocating 65536 bytes"),
            *(Cause.PROGRAM, "cc1plus: fatal error: out of memory allocating 65536 bytes"),
            id="a compiler",
        ),
        pytest.param(
            failed("RuntimeError: x\nXid 31 on GPU 0: a page fault; look at the script"),
            *(Cause.GPU, "Xid 31 on GPU 0: a page fault; look at the script"),
            id="Xid beside an exception",
        ),
        pytest.param(
            failed("Watchdog caught collective operation timeout: WorkNCCL", 134, 6),
            *(Cause.TIMEOUT, "Watchdog caught collective operation timeout: WorkNCCL"),
            id="NCCL's watchdog",
        ),
        pytest.param(failed(PEER), Cause.PEER, PEER, id="a peer is gone"),
        pytest.param(
            failed("OSError: [Errno 28] No space left on device: 'a'"),
            *(Cause.DISK, "OSError: [Errno 28] No space left on device: 'a'"),
            id="disk",
        ),
        pytest.param(
            failed(f"a download timed out, again\nConnection reset\n{TRACEBACK}"),
            *(Cause.EXCEPTION, "ValueError: a bad batch"),
            id="an exception after other trouble",
        ),
        pytest.param(
            failed(f"{TRACEBACK.removesuffix('ValueError: a bad batch')}{MISMATCH}"),
            *(
                Cause.EXCEPTION,
                "RuntimeError: Error(s) in loading state_dict for Net: size mismatch for a.weight",
            ),
            id="an exception with many lines",
        ),
        pytest.param(
            failed(TRACEBACK.replace("ValueError: a bad batch", PEER)),
            *(Cause.PEER, PEER),
            id="an exception since a peer is gone",
        ),
        pytest.param(failed("", 139, 11), Cause.CRASH, "", id="segmentation fault"),
        pytest.param(failed("bye", 3), Cause.PROGRAM, "bye", id="an exit code"),
        pytest.param(failed("", 124, culprit=Culprit.HANG), Cause.HANG, "", id="hang"),
    ],
)
def test_a_failure(failure, cause, text):
    found = of_failure(failure)
    assert (found.cause, found.text) == (cause, text)


def test_the_innermost_frames_of_an_exception():
    assert of_failure(failed(TRACEBACK)).evidence == ("train.py:12, main", "train.py:40, <module>")


def end(*reasons, failures=(), lost=(), at=10.0):
    return RoundEnded(0, at, 11.0, tuple(map(EndReason, reasons)), tuple(failures), tuple(lost))


LOST = LostNode("n3", "the agent on n3 was lost: its host confirmed that it exited", is_unfit=False)
UNFIT = LostNode("n3", "a GPU is broken", is_unfit=True)


@pytest.mark.parametrize(
    ("ended", "cause"),
    [
        pytest.param(end("failure", failures=[failed(TRACEBACK)]), Cause.EXCEPTION, id="failure"),
        pytest.param(end("loss", lost=[LOST]), Cause.LOST, id="loss"),
        pytest.param(
            end("failure", "loss", failures=[failed(PEER, at=10.1)], lost=[LOST]),
            Cause.LOST,
            id="a loss, of which a worker failed",
        ),
        pytest.param(
            end("failure", "loss", failures=[failed(TRACEBACK, at=10.0)], lost=[LOST]),
            Cause.EXCEPTION,
            id="a worker failed before the loss",
        ),
        pytest.param(end("loss", lost=[UNFIT]), Cause.UNFIT, id="unfit"),
        pytest.param(end("growth"), Cause.GROWTH, id="growth"),
        pytest.param(end("time", "verdict"), Cause.TIME_LIMIT, id="time limit"),
        pytest.param(end("preemption", "verdict"), Cause.PREEMPTED, id="preemption"),
        pytest.param(end("requeue", "verdict"), Cause.REQUEUED, id="requeue"),
        pytest.param(end("asked"), Cause.USER, id="hpclaunch restart"),
    ],
)
def test_a_round(ended, cause):
    assert of_round(ended).cause is cause


@pytest.mark.parametrize("reason", ["asked", "time", "growth", "verdict"])
def test_workers_that_were_stopped_are_not_to_blame(reason):
    """Workers that are asked to end may exit with any code."""
    report = end_report(end(reason, failures=[failed("bye", stopped=True)]))
    assert (report.who, report.code, report.tail) == ("", 0, "")
    assert report.consequences == ("rank 1 on n2",)


@pytest.mark.parametrize(
    ("origin", "cause"),
    [
        (Origin.DONE, Cause.DONE),
        (Origin.SIGNAL, Cause.USER),
        (Origin.STOP, Cause.USER),
        (Origin.TIME_LIMIT, Cause.TIME_LIMIT),
        (Origin.PREEMPTION, Cause.PREEMPTED),
        (Origin.REQUEUE, Cause.REQUEUED),
        (Origin.NOTICE, Cause.NOTICE),
        (Origin.USAGE, Cause.USAGE),
        (Origin.NODE_LOST, Cause.LOST),
        (Origin.NODE_UNFIT, Cause.UNFIT),
        (Origin.HEAD_LOST, Cause.LOST),
        (Origin.ABSENT, Cause.OTHER),
        (Origin.TROUBLE, Cause.OTHER),
    ],
)
def test_a_job(origin, cause):
    """Whatever the words are."""
    for reason in ("ended by SIGTERM on n1", "the head on n1 was lost", "Slurm requeues it"):
        assert of_job(Verdict(1, reason, origin)).cause is cause


def test_a_job_that_failed_has_the_cause_of_its_last_round():
    found = of_job(Verdict(1, "rank 1 on n2 exited with code 1", Origin.FAILURE, failed(TRACEBACK)))
    assert (found.cause, found.text) == (Cause.EXCEPTION, "ValueError: a bad batch")
