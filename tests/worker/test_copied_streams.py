"""The copier of workers' streams: what it can write reaches the files, whatever else fails."""

from __future__ import annotations

import errno
import os
import resource
import socket
import threading

from hpclaunch.worker.json_lines import JsonLines
from hpclaunch.worker.terminals import Copier, Copy, Flush, Flushed


def test_lost_bytes_are_counted(tmp_path):
    """A limit on the size of files takes the place of a full disk."""
    ours, theirs = socket.socketpair()
    stream, worker = os.pipe()
    requests, file = JsonLines(ours), tmp_path / "rank-0.out"
    requests.send(Copy(str(file)).encoded(), [stream])
    os.close(stream)
    copier = threading.Thread(target=Copier(theirs, console=2).run)
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
