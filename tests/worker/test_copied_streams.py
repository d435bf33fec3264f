"""The copier of workers' streams: what it can write reaches the files, whatever else fails."""

from __future__ import annotations

import errno
import os
import socket

from hpclaunch.worker.json_lines import JsonLines
from hpclaunch.worker.terminals import Copier, Copy


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
