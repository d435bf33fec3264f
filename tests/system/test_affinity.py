"""The CPUs of this task, and of machines that are not here, as their kernels show them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from sysfs import EPYC, XEON, Machine

from hpclaunch.core.placement.binding import Cpu, Locality, Mode, bind
from hpclaunch.core.protocol.ranges import parsed, written
from hpclaunch.system.processes import affinity


def test_this_machine():
    cpus = affinity.available()
    topology = affinity.topology(cpus)
    assert set(cpus) == os.sched_getaffinity(0) <= set(topology)
    (alone,) = bind(Mode.AUTO, cpus, topology, [Locality()])
    assert alone.cpus == cpus
    os.sched_setaffinity(0, alone.cpus)


def test_two_sockets_with_two_memory_nodes_each(tmp_path):
    topology = affinity.topology([], XEON.write(tmp_path))
    assert sorted(topology) == list(range(32))
    assert topology[5] == Cpu(core=5, socket=0, node=1, complex=4)
    assert topology[31] == Cpu(core=15, socket=1, node=3, complex=12)


def test_core_complexes(tmp_path):
    topology = affinity.topology([], EPYC.write(tmp_path))
    assert topology[17] == Cpu(core=1, socket=0, node=0, complex=0)
    assert topology[31] == Cpu(core=15, socket=0, node=1, complex=12)


def test_a_virtual_machine_shows_neither_caches_nor_memory_nodes(tmp_path):
    root = Machine(cores=2, threads=2).write(tmp_path)
    shutil.rmtree(root / "node")
    for cpu in range(4):
        shutil.rmtree(root / f"cpu/cpu{cpu}/cache")
    topology = affinity.topology(range(4), root)
    assert [where.core for where in topology.values()] == [0, 1, 0, 1]
    assert {(where.socket, where.node) for where in topology.values()} == {(0, 0)}
    assert len({where.complex for where in topology.values()}) == 1


def test_a_container_without_sysfs(tmp_path):
    topology = affinity.topology((3, 5), tmp_path / "nothing")
    assert topology == {cpu: Cpu(core=cpu, complex=-1) for cpu in (3, 5)}
    assert [b.cpus for b in bind(Mode.AUTO, (3, 5), topology, [Locality()] * 2)] == [(3,), (5,)]


def test_nonsense_in_sysfs_is_as_nothing(tmp_path):
    root = Machine(cores=1).write(tmp_path)
    (root / "node/node0/cpulist").write_text("none\n")
    (root / "cpu/cpu0/topology/physical_package_id").write_text("-1\n")
    (root / "cpu/cpu0/topology/thread_siblings_list").write_bytes(b"\xff")
    (root / "cpu/cpu0/cache/index0/shared_cpu_list").unlink()
    assert affinity.topology([0], root) == {0: Cpu(core=0)}


def test_cpus_that_are_offline_are_nobodys(tmp_path):
    root = XEON.write(tmp_path)
    (root / "cpu/online").write_text("0-7,16-23\n")  # the second socket is
    for cpu in (*range(8, 16), *range(24, 32)):
        shutil.rmtree(root / f"cpu/cpu{cpu}")
    for node in (2, 3):
        (root / f"node/node{node}/cpulist").write_text("\n")  # as a GPU's own memory has none
    topology = affinity.topology([], root)
    assert {where.node for where in topology.values()} == {0, 1}
    assert len(topology) == 16


TORCH = """
import json, os, sys
from torch.numa import binding
listdir = os.listdir

def bound(root, cpus, nodes):
    def there(path):
        return path.replace("/sys/devices/system", root)
    binding.open = lambda path: open(there(path))
    os.listdir = lambda path: listdir(there(path))
    os.sched_getaffinity = lambda pid: set(cpus)
    binding._get_gpu_count = lambda: len(nodes)
    binding._get_numa_node_index_for_gpu_index = lambda *, gpu_index: nodes[gpu_index]
    return {mode.value: [
        sorted(binding._get_logical_cpus_to_bind_to(
            gpu_index=gpu, numa_options=binding.NumaOptions(affinity_mode=mode)
        )) for gpu in range(len(nodes))
    ] for mode in binding.AffinityMode}

print(json.dumps([bound(*case) for case in json.loads(sys.argv[1])]))
"""


@pytest.mark.starts
def test_what_torchrun_binds_to(tmp_path):
    """torch's own code looks at the same machines; the last are the GPUs' memory nodes."""
    cases = [
        (str(XEON.write(tmp_path / "xeon")), sorted(parsed("0-31")), [0, 1, 2, 3]),
        (str(EPYC.write(tmp_path / "epyc")), sorted(parsed("1-14,17-31")), [1, 1, 0, 1, 0]),
    ]
    said = subprocess.run(
        [sys.executable, "-c", TORCH, json.dumps(cases)], capture_output=True, text=True
    )
    if "No module named 'torch" in said.stderr:
        pytest.skip("no torch here with --numa-binding")
    for (root, cpus, gpus), theirs in zip(cases, json.loads(said.stdout), strict=True):
        topology = affinity.topology([], Path(root))
        localities = [
            Locality(f"GPU {k}", tuple(c for c in topology if topology[c].node == node), (node,))
            for k, node in enumerate(gpus)
        ]
        ours = {
            mode.value: [written(b.cpus) for b in bind(mode, cpus, topology, localities)]
            for mode in Mode
            if mode not in (Mode.AUTO, Mode.NONE)
        }
        assert ours == {mode: [written(c) for c in of_all] for mode, of_all in theirs.items()}
