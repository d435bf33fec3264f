"""The copier of workers' streams: what it can write reaches the files, whatever else fails."""

from __future__ import annotations

import errno
import os
import resource
import select
import signal
import socket
import threading

import pytest

from hpclaunch.worker import terminals as copied_streams
from hpclaunch.worker.fork_server_messages import Worker
from hpclaunch.worker.json_lines import JsonLines
from hpclaunch.worker.terminals import Copier, Copy, Flush, Flushed, Terminals

LIMIT = 60  # seconds; far more than any of this takes


def test_lost_bytes_are_counted(tmp_path):
    """A limit on the size of files takes the place of a full disk."""
    ours, theirs = socket.socketpair()
    stream, worker = os.pipe()
    requests, file = JsonLines(ours), tmp_path / "rank-0.out"
    requests.send(Copy(str(file)).encoded(), [stream])
    os.close(stream)
    console = os.open(os.devnull, os.O_WRONLY)  # the copier closes it at its end
    copier = threading.Thread(target=Copier(theirs, console).run)
    copier.start()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        for text, limit in ((b"before\n", 10), (b"far too much\n", soft), (b"after\n", soft)):
            os.write(worker, text)
            requests.send(Flush().encoded())
            assert requests.receive() == [Flushed().encoded()]
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        os.close(worker)
        requests.close()
        copier.join()
        theirs.close()
    lost = len(b"before\nfar too much\n") - 10
    assert file.read_text() == f"before\nfar\nhpclaunch: {lost} bytes are lost here\nafter\n"


def test_a_stream_whose_file_cannot_be_opened_is_shown_and_costs_no_other(tmp_path):
    ours, theirs = socket.socketpair()
    reads, console = os.pipe()
    requests = JsonLines(ours)
    gone = tmp_path / "gone" / "rank-0.out"
    for file, text in ((gone, b"shown\n"), (tmp_path / "1", b"kept\n")):
        stream, worker = os.pipe()
        requests.send(Copy(str(file)).encoded(), [stream])
        os.write(worker, text)
        os.close(stream)
        os.close(worker)
    requests.close()
    Copier(theirs, console).run()
    assert (tmp_path / "1").read_bytes() == b"kept\n"
    message = f"hpclaunch: {gone}: {os.strerror(errno.ENOENT)}: its lines are only shown here\n"
    assert os.read(reads, 4096).decode() == f"{message}shown\n"
    theirs.close()
    os.close(reads)


@pytest.mark.starts
def test_the_copier_ends_with_the_fork_server_if_no_worker_was_started(tmp_path, monkeypatch):
    """The fork server waits for the copier at its end, and has the streams open itself."""
    monkeypatch.setattr(copied_streams, "LINGER", 1000.0)
    streams = Terminals()
    file = str(tmp_path / "rank-0.out")
    assert streams.open([Worker(0, [], {}, file, file)], {}, (24, 80), pipes=True)
    copier = os.pidfd_open(streams.pid)
    streams.close()
    ended, _, _ = select.select([copier], [], [], LIMIT)
    os.close(copier)
    if not ended:
        os.kill(streams.pid, signal.SIGKILL)
    os.waitpid(streams.pid, 0)
    assert ended
