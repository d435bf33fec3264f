"""The process that holds the rounds' c10d TCPStores on the node of rank 0.

    python store.py FD

For every round a listening socket comes over FD, and a fresh store takes it over; the one of the
last round goes. Connections made in the meantime wait in the socket's backlog, so that workers
may be started before this process has imported torch. It outlives the workers of a round:
nobody sees a broken store while the round ends.
"""

import socket
import sys


def main(fd):
    channel = socket.socket(fileno=fd)
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch's own name for it

    stores: list[TCPStore] = []  # the living one
    while True:
        data, fds, _, _ = socket.recv_fds(channel, 1, 1)
        if not data:
            return
        listener = socket.socket(fileno=fds[0])
        port = listener.getsockname()[1]
        stores.clear()  # the last round's goes before the next one begins
        store = TCPStore(
            "127.0.0.1",
            port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )
        stores.append(store)


if __name__ == "__main__":
    main(int(sys.argv[1]))
