"""What each epoch of `elastic.py` adds up, and what comes of it."""

ITEMS = 1000
PRIME = 1_000_003


def share(epoch: int, rank: int, world: int) -> int:
    return sum((item * item + epoch) % PRIME for item in range(rank, ITEMS, world))


def after(state: int, total: int) -> int:
    return (3 * state + total) % PRIME
