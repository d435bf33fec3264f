"""The CPUs of each worker: near its GPU, no CPU twice, and none of another task's."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hpclaunch.core.placement.binding import (
    Binding,
    Cpu,
    Locality,
    Mode,
    bind,
    cpus_each,
    describe,
    locality,
    remarks,
    threads,
)
from hpclaunch.core.placement.devices import Gpu
from hpclaunch.core.protocol.ranges import parsed, written

NOWHERE = Locality()


def machine(sockets=1, nodes=1, complexes=1, cores=4, smt=1):
    """Numbered as Linux does: one thread of every core first, then the second of each."""
    every = itertools.product(range(sockets), range(nodes), range(complexes), range(cores))
    found = {}
    for core, (socket, node, part, _) in enumerate(every):
        behind = (socket * nodes + node) * complexes + part
        where = Cpu(core, socket, socket * nodes + node, behind * cores)
        found |= {
            core + thread * sockets * nodes * complexes * cores: where for thread in range(smt)
        }
    return found


TWO_SOCKETS = machine(sockets=2, smt=2)  # 0-3,8-11 and 4-7,12-15
NPS2 = machine(nodes=2, complexes=2, cores=2)  # 0-3 and 4-7, pairs behind a cache
LARGE = machine(sockets=2, nodes=4, complexes=4, cores=4, smt=2)


def gpu(index, node, topology=TWO_SOCKETS):
    near = tuple(cpu for cpu, where in topology.items() if where.node == node)
    return Locality(f"GPU {index}", near, (node,))


def given_out(mode, cpus, topology, localities):
    """Return the CPUs of each worker, as the kernel writes them."""
    return [written(b.cpus) for b in bind(mode, parsed(cpus), topology, localities)]


ALL = "0-15"
NEAR_0, NEAR_1 = gpu(0, 0), gpu(1, 1)
CROSSED = [gpu(0, 1), gpu(1, 1), gpu(2, 0), gpu(3, 0)]


@pytest.mark.parametrize(
    ("cpus", "localities", "expected"),
    [
        # Without a GPU: equal shares of whole cores, each within a socket.
        (ALL, [NOWHERE] * 2, ["0-3,8-11", "4-7,12-15"]),
        (ALL, [NOWHERE] * 4, ["0-1,8-9", "2-3,10-11", "4-5,12-13", "6-7,14-15"]),
        (ALL, [NOWHERE] * 3, ["0-2,8-10", "3-5,11-13", "6-7,14-15"]),
        ("0-3,8-11", [NOWHERE] * 8, ["0", "8", "1", "9", "2", "10", "3", "11"]),
        ("0-3", [NOWHERE] * 2, ["0-1", "2-3"]),  # Slurm gave one thread of each core
        ("3", [NOWHERE] * 2, ["3", "3"]),
        # Near the GPU.
        (ALL, [NEAR_0], [ALL]),  # nobody else of the task has a use for the others
        (ALL, [NEAR_0] * 2, ["0-1,4-5,8-9,12-13", "2-3,6-7,10-11,14-15"]),
        (ALL, [NEAR_0, NEAR_1], ["0-3,8-11", "4-7,12-15"]),
        (ALL, CROSSED, ["4-5,12-13", "6-7,14-15", "0-1,8-9", "2-3,10-11"]),
        (ALL, [NEAR_0, NEAR_0, NEAR_1], ["0-1,8-9", "2-3,10-11", "4-7,12-15"]),
        ("2-5", [NEAR_1, NEAR_0], ["4-5", "2-3"]),
        # Workers that share a GPU.
        (ALL, [NEAR_0] * 3 + [NEAR_1], ["0-1,8-9", "2,10", "3,11", "4-7,12-15"]),
        ("0-1,4-5", [NEAR_0] * 4, ["0", "1", "4", "5"]),  # near it are too few
        # Far, all or some of them.
        ("0-3", [NEAR_1], ["0-3"]),
        ("0-3", [NEAR_0, NEAR_1], ["0-1", "2-3"]),
        ("0-3,4", [NEAR_1], ["0-4"]),  # one near CPU instead of all five would be a bad bargain
        (ALL, [NEAR_0, NOWHERE, NEAR_1], ["0-2,8-10", "3-5,11-13", "6-7,14-15"]),
    ],
)
def test_auto(cpus, localities, expected):
    assert given_out(Mode.AUTO, cpus, TWO_SOCKETS, localities) == expected


def test_two_gpus_of_a_worker_on_two_nodes():
    both = locality(
        [Gpu("1", "b", 1, cpus=NEAR_0.near), Gpu("2", "c", 2, cpus=NEAR_1.near, node=1)]
    )
    assert both.name == "GPU 1, GPU 2"
    assert both.near == tuple(range(16))
    assert given_out(Mode.AUTO, ALL, TWO_SOCKETS, [both]) == [ALL]
    shares = given_out(Mode.AUTO, ALL, TWO_SOCKETS, [NEAR_1, both, both, NEAR_0])
    assert shares == ["6-7,14-15", "2-3,10-11", "4-5,12-13", "0-1,8-9"]


def cores_by_node(cpus, topology):
    """{memory node: how many cores of it}."""
    return Counter(node for _, node in {(topology[c].core, topology[c].node) for c in cpus})


def test_one_worker_has_all_of_its_task():
    """With one GPU, on two sockets: half of its data loaders' CPUs would be idle otherwise."""
    topology = machine(sockets=2, cores=32)
    (binding,) = bind(Mode.AUTO, topology, topology, [gpu(0, 1, topology)])
    assert binding == Binding(tuple(range(64)), (0, 1), near=True)


def test_few_near_ones_are_helped_out_by_their_socket_and_the_others():
    localities = [gpu(k, 1, LARGE) for k in range(4)]
    shares = bind(Mode.AUTO, LARGE, LARGE, localities)
    for b in shares:
        near = cores_by_node(b.cpus, LARGE)
        assert near[1] == 4
        assert sum(near[node] for node in (0, 2, 3)) == 12
        assert sum(near[node] for node in (4, 5, 6, 7)) == 16


def test_fewer_workers_than_memory_nodes():
    """Two GPUs near the first of four nodes: what is near is shared, and so is all the rest."""
    topology = machine(sockets=2, nodes=2, cores=16)
    localities = [gpu(0, 0, topology), gpu(1, 0, topology)]
    for b in bind(Mode.AUTO, topology, topology, localities):
        cores = cores_by_node(b.cpus, topology)
        assert (cores[0], cores[1], cores.total()) == (8, 8, 32)
        assert b.near


def test_nodes_without_a_gpu_go_to_the_workers_of_their_socket():
    """A node's four GPUs may each be at a quarter of one of its sockets."""
    topology = machine(sockets=2, nodes=4, cores=8, smt=2)
    localities = [gpu(k, node, topology) for k, node in enumerate((3, 1, 7, 5))]
    shares = bind(Mode.AUTO, topology, topology, localities)
    for b, own, others in zip(shares, (3, 1, 7, 5), ((0, 2),) * 2 + ((4, 6),) * 2, strict=True):
        cores = cores_by_node(b.cpus, topology)
        assert cores[own] == 8
        assert sum(cores[node] for node in others) == 8
        assert cores.total() == 16


def test_both_near_nodes_of_one_socket_stay_whose_they_are():
    topology = machine(sockets=2, nodes=4, cores=8)
    for b, node in zip(
        bind(Mode.AUTO, topology, topology, [gpu(0, 1, topology), gpu(1, 2, topology)]),
        (1, 2),
        strict=True,
    ):
        cores = cores_by_node(b.cpus, topology)
        assert cores[node] == 8
        assert sum(cores[n] for n in range(4)) == sum(cores[n] for n in range(4, 8)) == 16


def test_who_has_least_gets_most_of_what_nobody_is_near_to():
    topology = machine(nodes=3, cores=6)
    localities = [gpu(0, 0, topology), gpu(1, 0, topology), gpu(2, 1, topology)]
    shares = bind(Mode.AUTO, topology, topology, localities)
    assert [len(b.cpus) for b in shares] == [6, 6, 6]
    assert shares[2].nodes == (1,)


@pytest.mark.parametrize(
    ("mode", "cpus", "localities", "expected"),
    [
        (Mode.NONE, "1-5", [gpu(0, 0, NPS2), NOWHERE], ["1-5", "1-5"]),
        (Mode.NODE, "1-5", [gpu(0, 0, NPS2), gpu(1, 1, NPS2)], ["1-3", "4-5"]),
        (Mode.NODE, "0-7", [NOWHERE] * 4, ["0-3", "0-3", "4-7", "4-7"]),
        (Mode.SOCKET, "1-5", [gpu(0, 0, NPS2), gpu(1, 1, NPS2)], ["1-5", "1-5"]),
        (Mode.EXCLUSIVE, "0-7", [gpu(0, 0, NPS2)], ["0-3"]),
        (Mode.EXCLUSIVE, "0-7", [gpu(k, 1, NPS2) for k in range(3)], ["4-5", "6", "7"]),
        (Mode.EXCLUSIVE, "0-7", [NOWHERE] * 4, ["0-1", "2-3", "4-5", "6-7"]),
        (Mode.EXCLUSIVE, "3-7", [gpu(0, 0, NPS2)] * 2, ["3", "3"]),  # all of one CPU
        (Mode.CORE_COMPLEX, "0-7", [gpu(k, 1, NPS2) for k in range(3)], ["4-5", "6-7", "4-5"]),
        (Mode.CORE_COMPLEX, "1-7", [gpu(k, 0, NPS2) for k in range(2)], ["2-3", "1"]),
        (Mode.CORE_COMPLEX, "0-7", [NOWHERE] * 4, ["0-1", "2-3", "4-5", "6-7"]),
        # The GPU is near to nothing that this task has: by slot.
        (Mode.NODE, "0-3", [gpu(0, 1, NPS2)], ["0-3"]),
        (Mode.CORE_COMPLEX, "0-3", [gpu(0, 1, NPS2), gpu(1, 0, NPS2)], ["0-1", "2-3"]),
    ],
)
def test_as_torchruns_numa_binding(mode, cpus, localities, expected):
    assert given_out(mode, cpus, NPS2, localities) == expected


machines = st.builds(
    machine,
    sockets=st.integers(1, 2),
    nodes=st.integers(1, 3),
    complexes=st.integers(1, 2),
    cores=st.integers(1, 4),
    smt=st.integers(1, 2),
)


@st.composite
def tasks(draw):
    """(topology, the task's CPUs, its localities): GPUs anywhere, or nowhere."""
    topology = draw(machines)
    cpus = draw(st.sets(st.sampled_from(sorted(topology)), min_size=1))
    nodes = sorted({where.node for where in topology.values()})
    localities = st.sampled_from(nodes).map(lambda node: gpu(node, node, topology))
    localities = draw(st.lists(st.one_of(localities, st.just(NOWHERE)), min_size=1, max_size=12))
    return topology, cpus, localities


@given(tasks())
def test_whatever_the_machine(task):
    topology, cpus, localities = task
    for mode in Mode:
        bindings = bind(mode, cpus, topology, localities)
        assert len(bindings) == len(localities)
        for b in bindings:
            assert b.cpus
            assert set(b.cpus) <= cpus
            assert b.nodes == tuple(sorted({topology[cpu].node for cpu in b.cpus}))
        assert threads(bindings, topology) >= 1
        assert all(1 <= n <= len(cpus) for n in cpus_each(bindings))


ONE_CORE_NEAR = machine(nodes=2, cores=3, smt=2)


@given(tasks())
@example((ONE_CORE_NEAR, {0, 1, 2, 3, 9}, [gpu(0, 1, ONE_CORE_NEAR), gpu(1, 1, ONE_CORE_NEAR)]))
def test_auto_gives_nothing_twice_and_to_nobody_too_little(task):
    topology, cpus, localities = task
    bindings = bind(Mode.AUTO, cpus, topology, localities)
    cores = {topology[cpu].core for cpu in cpus}
    if len(cpus) < len(localities):
        assert {b.cpus for b in bindings} == {tuple(sorted(cpus))}
        return
    taken = [cpu for b in bindings for cpu in b.cpus]
    assert len(taken) == len(set(taken))
    fewest = min(len({topology[cpu].core for cpu in b.cpus}) for b in bindings)
    assert fewest >= len(cores) // len(localities) // 2
    if fewest and len(cores) >= 2 * len(localities):  # whole cores, with all the threads there are
        owners = [{topology[cpu].core for cpu in b.cpus} for b in bindings]
        assert sum(map(len, owners)) == len(set().union(*owners))
        for b, own in zip(bindings, owners, strict=True):
            assert set(b.cpus) == {cpu for cpu in cpus if topology[cpu].core in own}


@given(tasks())
def test_auto_leaves_no_cpu_to_nobody(task):
    topology, cpus, localities = task
    bindings = bind(Mode.AUTO, cpus, topology, localities)
    assert {cpu for b in bindings for cpu in b.cpus} == cpus


@given(tasks())
def test_without_gpus_all_cpus_are_given_out(task):
    topology, cpus, localities = task
    bindings = bind(Mode.AUTO, cpus, topology, [NOWHERE] * len(localities))
    assert {cpu for b in bindings for cpu in b.cpus} == cpus
    sizes = [len({topology[cpu].core for cpu in b.cpus}) for b in bindings]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("mode", "localities", "cores", "cpus"),
    [
        (Mode.AUTO, [NOWHERE], 8, [16]),
        (Mode.AUTO, [NOWHERE] * 3, 2, [6, 6, 4]),
        (Mode.AUTO, [NOWHERE] * 16, 1, [1] * 16),
        (Mode.AUTO, [NOWHERE] * 17, 1, [1] * 17),
        (Mode.NONE, [NOWHERE] * 3, 2, [5] * 3),
        (Mode.NODE, [NEAR_0] * 2 + [NEAR_1], 2, [4, 4, 8]),
    ],
)
def test_what_a_worker_can_count_on(mode, localities, cores, cpus):
    bindings = bind(mode, TWO_SOCKETS, TWO_SOCKETS, localities)
    assert threads(bindings, TWO_SOCKETS) == cores
    assert cpus_each(bindings) == cpus


def test_the_map():
    localities = [NEAR_0, NEAR_1, Locality()]
    bindings = bind(Mode.AUTO, range(4), TWO_SOCKETS, localities)
    assert describe(bindings, localities, 4) == [
        "rank 4: GPU 0, CPUs 0-1, memory node 0",
        "rank 5: GPU 1, CPUs 2, memory node 0, far from its GPU",
        "rank 6: CPUs 3, memory node 0",
    ]
    (remark,) = remarks(bindings, localities, range(4))
    assert remark == "GPU 1 is near CPUs 4-7,12-15, but this task has 0-3"
    assert describe([Binding((0, 4), (0, 1))], [NOWHERE], 0) == [
        "rank 0: CPUs 0,4, memory nodes 0-1"
    ]


def test_all_of_the_machine_is_far_from_no_gpu():
    for mode in Mode:
        bindings = bind(mode, LARGE, LARGE, [gpu(0, 3, LARGE)])
        assert remarks(bindings, [gpu(0, 3, LARGE)], LARGE) == ()


def test_workers_that_share_a_far_gpu_are_one_remark():
    localities = [NEAR_1, NEAR_1, Locality("GPU 2", NEAR_1.near)]
    (remark,) = remarks(bind(Mode.AUTO, range(4), TWO_SOCKETS, localities), localities, range(4))
    assert remark.startswith("GPU 1, GPU 2 are near CPUs 4-7,12-15, but ")


@pytest.mark.parametrize("text", ["", "0", "0-3,8-11", "1,3,5-6"])
def test_lists_of_the_kernel(text):
    assert written(parsed(text)) == text


@pytest.mark.parametrize("text", ["x", "1-x", "-"])
def test_what_is_no_list(text):
    with pytest.raises(ValueError, match="invalid literal"):
        parsed(text)
