"""The copier of workers' streams: what it can write reaches the files, whatever else fails."""

from __future__ import annotations

import os
import socket

from hpclaunch.worker.json_lines import JsonLines
from hpclaunch.worker.terminals import Copier, Copy


def test_a_file_that_cannot_be_opened_costs_no_other_stream(tmp_path):
    ours, theirs = socket.socketpair()
    requests = JsonLines(ours)
    for file, text in ((tmp_path / "gone" / "rank-0.out", b"lost\n"), (tmp_path / "1", b"kept\n")):
        stream, worker = os.pipe()
        requests.send(Copy(str(file)).encoded(), [stream])
        os.write(worker, text)
        os.close(stream)
        os.close(worker)
    requests.close()
    Copier(theirs).run()
    assert (tmp_path / "1").read_bytes() == b"kept\n"
    theirs.close()
