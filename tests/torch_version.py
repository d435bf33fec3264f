"""The version of torch, for tests that need a later one than the oldest that is supported."""

from importlib.metadata import version

TORCH = tuple(map(int, version("torch").split(".")[:2]))
