"""The random number generator, which is only seeded."""

import os
import random  # noqa: F401


class State(bytes):
    def numpy(self):
        return memoryview(self)


class Generator:
    def __init__(self):
        self.seed()

    def seed(self):
        return self.manual_seed(int.from_bytes(os.urandom(8), "little"))

    def manual_seed(self, seed):
        self._seed = seed
        return seed

    def initial_seed(self):
        return self._seed

    def get_state(self):
        return State(self._seed.to_bytes(8, "little"))


default_generator = Generator()
manual_seed = default_generator.manual_seed
initial_seed = default_generator.initial_seed
