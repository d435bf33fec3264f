"""Machines that are not here, as their kernels show them below /sys/devices/system."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hpclaunch.core.protocol.ranges import written


@dataclass(frozen=True)
class Machine:
    """A machine; the kernel numbers the first thread of every core, then the second of each."""

    sockets: int = 1
    nodes: int = 1  # of memory, per socket
    complexes: int = 1  # per node
    cores: int = 4  # per complex
    threads: int = 1

    @property
    def of_socket(self) -> int:
        return self.nodes * self.of_node

    @property
    def of_node(self) -> int:
        return self.complexes * self.cores

    @property
    def all_cores(self) -> int:
        return self.sockets * self.of_socket

    @property
    def cpus(self) -> range:
        return range(self.all_cores * self.threads)

    def alike(self, cpu: int, size: int) -> str:
        """Return the CPUs that share a unit of so many cores."""
        unit = cpu % self.all_cores // size
        return written(c for c in self.cpus if c % self.all_cores // size == unit)

    def write(self, root: Path) -> Path:
        files = {"cpu/online": written(self.cpus), "cpu/possible": written(range(512))}
        for cpu in self.cpus:
            core = cpu % self.all_cores
            own = self.alike(cpu, 1)
            topology = {
                "thread_siblings_list": own,
                "physical_package_id": core // self.of_socket,
                "core_id": core % self.of_socket,
            }
            caches = [(1, "Data", own), (1, "Instruction", own), (2, "Unified", own)]
            caches.append((3, "Unified", self.alike(cpu, self.cores)))
            files |= {f"cpu/cpu{cpu}/topology/{name}": v for name, v in topology.items()}
            for index, (level, kind, shared) in enumerate(caches):
                cache = f"cpu/cpu{cpu}/cache/index{index}"
                files[f"{cache}/level"] = level
                files[f"{cache}/type"] = kind
                files[f"{cache}/shared_cpu_list"] = shared
        for node in range(self.sockets * self.nodes):
            files[f"node/node{node}/cpulist"] = self.alike(node * self.of_node, self.of_node)
        files["node/possible"] = written(range(self.sockets * self.nodes))
        for name, content in files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{content}\n")
        return root


XEON = Machine(sockets=2, nodes=2, cores=4, threads=2)  # with sub-NUMA clusters
EPYC = Machine(sockets=1, nodes=2, complexes=2, cores=4, threads=2)  # with NPS2
