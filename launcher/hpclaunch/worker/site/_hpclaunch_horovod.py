"""Sets up Horovod with gloo as horovodrun would: its variables, and the rendezvous server.

The hooks call `prepare` before a script's `hvd.init()`. It does nothing if horovodrun or mpirun has
started the script. The ranks exchange their places in the round's store, and rank 0 writes its
server's port there. The server is a thread of rank 0's process and ends with it. Horovod needs the
server only to connect, and every round has a new one.

Horovod's server speaks plain HTTP without authentication; torch's store has none either. So it
listens at the store's address only, and answers only the hosts of the ranks.
"""

import json
import os
import socket
import socketserver
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is not imported here
    from collections.abc import Mapping, Sequence
    from typing import TypeAlias

    Place: "TypeAlias" = tuple[str, int]  # host, local rank

OTHERS = (  # set by horovodrun or mpirun, or by users of another rendezvous
    "HOROVOD_RANK",
    "HOROVOD_SIZE",
    "HOROVOD_GLOO_RENDEZVOUS_ADDR",
    "OMPI_COMM_WORLD_RANK",
)
KEYS = "hpclaunch/horovod"  # in the round's store


def prepare() -> None:
    """Set the variables for this worker, unless they are set. Return once all ranks have met.

    Raises torch.distributed's errors if the store cannot be reached, or if ranks are missing after
    5 minutes; RuntimeError if the address is not IPv4.
    """
    env = os.environ
    if any(name in env for name in OTHERS) or env.get("HOROVOD_CONTROLLER", "gloo") != "gloo":
        return
    rank, size = int(env["RANK"]), int(env["WORLD_SIZE"])
    given: dict[str, str | int] = {"CONTROLLER": "gloo", "CPU_OPERATIONS": "gloo"}
    interface = env.get("GLOO_SOCKET_IFNAME", "").partition(",")[0]
    if interface:
        given["GLOO_IFACE"] = interface
    places, port = [place(env)], None
    address, _, launchers = env["HPCLAUNCH_STORE"].rpartition(":")
    if size > 1:
        places, port = meet(address, int(launchers), rank, size, *places)
        given["GLOO_RENDEZVOUS_ADDR"] = address
        given["GLOO_RENDEZVOUS_PORT"] = str(port)
    given.update(assignment(places, rank))
    for name, value in given.items():
        env.setdefault("HOROVOD_" + name, str(value))


def meet(address: str, port: int, rank: int, size: int, mine: "Place") -> "tuple[list[Place], int]":
    """Return the places of all ranks, and the port of rank 0's server."""
    if ":" in address:
        raise RuntimeError(
            f"Horovod's rendezvous knows IPv4 only, and the nodes meet at {address}: name an IPv4 "
            "address of each node with --local-addr"
        )
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    store = TCPStore(address, port, is_master=False)
    store.set(f"{KEYS}/{rank}", json.dumps([mine, source_address(address)]))
    if rank == 0:
        met = [json.loads(store.get(f"{KEYS}/{other}")) for other in range(size)]
        places = [place for place, _ in met]
        server = serve(address, places, {source for _, source in met})
        store.set(KEYS, json.dumps([places, server]))
    places, server = json.loads(store.get(KEYS))
    return places, server


def source_address(server: str) -> str:
    """Return the local address from which this host connects to a server."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.connect((server, 9))
        return str(s.getsockname()[0])


def place(env: "Mapping[str, str]") -> "Place":
    """Return (host, local rank). hvd.local_rank() must be LOCAL_RANK, which scripts use as their
    device. A worker that sees only its own device has LOCAL_RANK 0 and gets its own host name."""
    local, position = env["LOCAL_RANK"], env["HPCLAUNCH_LOCAL_RANK"]
    host = "{}-{}".format(socket.gethostname(), env["GROUP_RANK"])
    if local != position:
        host += f"-{position}"
    return env.get("HOROVOD_HOSTNAME", host), int(local)


def assignment(places: "Sequence[Place]", rank: int) -> "dict[str, str | int]":
    """Return {variable: value}. Horovod's cross rank is a rank among those with the same local
    rank."""
    host, local = places[rank]
    across = [other for other, (_, its) in enumerate(places) if its == local]
    return {
        "HOSTNAME": host,
        "RANK": rank,
        "SIZE": len(places),
        "LOCAL_RANK": local,
        "LOCAL_SIZE": sum(1 for its, _ in places if its == host),
        "CROSS_RANK": across.index(rank),
        "CROSS_SIZE": len(across),
    }


def serve(address: str, places: "Sequence[Place]", sources: "set[str]") -> int:
    """Start a server for clients at these addresses, which ends with this process. Return its
    port."""
    from horovod.runner.common.util.hosts import SlotInfo  # type: ignore[import-not-found]
    from horovod.runner.http import http_server  # type: ignore[import-not-found]

    class RendezvousServer(http_server.RendezvousHTTPServer):  # type: ignore[misc]
        daemon_threads = True
        request_queue_size = 4096

        def server_bind(self) -> None:
            # HTTPServer.server_bind looks up the host's name, which may take long.
            socketserver.TCPServer.server_bind(self)

        def verify_request(self, _: object, client_address: "tuple[str, int]") -> bool:
            return client_address[0] in sources

    server = RendezvousServer((address, 0), http_server.RendezvousHandler, 0)
    slots = []
    for rank in range(len(places)):
        values = assignment(places, rank)
        slots.append(SlotInfo(**{name.lower(): value for name, value in values.items()}))
    server.init(slots)
    threading.Thread(target=server.serve_forever, name="hpclaunch-horovod", daemon=True).start()
    return int(server.server_address[1])
