"""Horovod's variables and server: real ranks of a real Horovod, which meet at a real store.

`make test-horovod`
"""

from __future__ import annotations

import importlib.util
import json
import socket
import sys

import pytest
from test_hooks import HOOKS, LIMIT, start, worker_environment
from test_hooks import processes as processes  # fixtures
from test_hooks import store as store

missing = importlib.util.find_spec("horovod") is None
pytestmark = [
    pytest.mark.starts,
    pytest.mark.horovod,
    pytest.mark.skipif(missing, reason="needs horovod"),
]

REPORT = """
import json, os, threading
{first}
import horovod.torch as hvd
hvd.init()
import torch
total = hvd.allreduce(torch.ones(1), op=hvd.Sum).item()
result = {{n: v for n, v in os.environ.items() if n.startswith("HOROVOD_")}}
result["serves"] = "hpclaunch-horovod" in [t.name for t in threading.enumerate()]
result["is"] = [total, hvd.rank(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank()]
hvd.shutdown()
{last}
print(json.dumps(result))
"""
INIT = "/horovod/__init__.py"
AGAIN = "hvd.init(); hvd.barrier(); hvd.shutdown()"


def ranks(processes, store, places, first="", last="", **env):
    """Return the variables and results of each rank. `places`: (node, local rank, position)."""
    port = store.port()
    started = []
    for rank, (node, local, position) in enumerate(places):
        environ = worker_environment(port, rank, len(places)) | env
        # Horovod stands behind the hooks, as it does in PYTHONPATH under the launcher.
        environ["PYTHONPATH"] += ":" + importlib.util.find_spec("horovod").origin[: -len(INIT)]
        more = {"GROUP_RANK": node, "LOCAL_RANK": local, "HPCLAUNCH_LOCAL_RANK": position}
        more["GLOO_SOCKET_IFNAME"] = "lo"
        environ |= {name: str(value) for name, value in more.items()}
        text = REPORT.format(first=first, last=last)
        started.append(start(processes, [sys.executable, "-c", text], HOOKS, environ))
    found = []
    for process in started:
        out, err = process.communicate(timeout=LIMIT)
        assert process.returncode == 0, out + err
        found.append(json.loads(out))
    return found


def test_ranks_of_uneven_nodes_meet_and_meet_again(processes, store):
    places = [(0, 0, 0), (0, 1, 1), (1, 0, 0)]
    found = ranks(processes, store, places, last=AGAIN)
    assert [result["is"] for result in found] == [[3, 0, 0, 2, 0], [3, 1, 1, 2, 0], [3, 2, 0, 1, 1]]
    assert [result["HOROVOD_CROSS_SIZE"] for result in found] == ["2", "1", "2"]
    assert [result["serves"] for result in found] == [True, False, False]
    for result in found:
        assert result["HOROVOD_CONTROLLER"] == result["HOROVOD_CPU_OPERATIONS"] == "gloo"
        assert result["HOROVOD_GLOO_RENDEZVOUS_ADDR"] == "127.0.0.1"
        assert result["HOROVOD_GLOO_IFACE"] == "lo"


def test_workers_that_see_one_device_each_are_local_rank_0(processes, store):
    found = ranks(processes, store, [(0, 0, 0), (0, 0, 1)])
    assert [result["is"] for result in found] == [[2, 0, 0, 1, 0], [2, 1, 0, 1, 1]]


def test_what_the_user_has_set_stays(processes, store):
    (result,) = ranks(processes, store, [(0, 0, 0)], HOROVOD_HOSTNAME="mine")
    assert result["HOROVOD_HOSTNAME"] == "mine"
    assert result["is"] == [1, 0, 0, 1, 0]
    assert "HOROVOD_GLOO_RENDEZVOUS_ADDR" not in result, "alone it meets nobody"


def test_who_was_started_for_horovod_by_others_is_left_alone(processes, store):
    (result,) = ranks(processes, store, [(0, 0, 0)], HOROVOD_RANK="0", HOROVOD_SIZE="1")
    assert result.keys() == {"HOROVOD_RANK", "HOROVOD_SIZE", "serves", "is"}


def test_a_horovod_that_was_imported_before_the_fork(processes, store):
    first = """
import horovod.torch, sys
if os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    found = ranks(processes, store, [(0, 0, 0), (0, 1, 1)], first=first)
    assert [result["is"][:2] for result in found] == [[2, 0], [2, 1]]


def test_the_rendezvous_answers_the_hosts_of_the_ranks_only():
    port = ours().serve("127.0.0.1", [("a", 0), ("b", 0)], {"127.0.0.1", "127.0.0.2"})
    for source, answered in [("127.0.0.1", True), ("127.0.0.2", True), ("127.0.0.3", False)]:
        with socket.create_connection(("127.0.0.1", port), source_address=(source, 0)) as s:
            s.settimeout(LIMIT)
            try:
                s.sendall(b"GET /global/nothing HTTP/1.0\r\n\r\n")
                assert bool(s.recv(100)) is answered
            except ConnectionError:
                assert not answered
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port))


def ours():
    spec = importlib.util.spec_from_file_location("ours", HOOKS / "_hpclaunch_horovod.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_places_are_counted_as_horovodrun_does():
    from horovod.runner.common.util.hosts import HostInfo, get_host_assignments

    counts = {"a": 1, "b": 4, "c": 2, "d": 4}
    theirs = get_host_assignments([HostInfo(*host) for host in counts.items()], 11)
    places = [(host, local) for host, slots in counts.items() for local in range(slots)]
    for rank, slot in enumerate(theirs):
        found = ours().assignment(places, rank)
        assert {name.lower(): value for name, value in found.items()} == vars(slot)
