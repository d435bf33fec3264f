"""The sums of each epoch of `elastic.py`, and its state after an epoch."""

ITEMS = 1000
PRIME = 1_000_003


def share(epoch: int, rank: int, world: int) -> int:
    return sum((item * item + epoch) % PRIME for item in range(rank, ITEMS, world))


def after(state: int, total: int) -> int:
    return (3 * state + total) % PRIME
