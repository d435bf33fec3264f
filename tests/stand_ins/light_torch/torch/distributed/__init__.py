from .distributed_c10d import *  # noqa: F403
