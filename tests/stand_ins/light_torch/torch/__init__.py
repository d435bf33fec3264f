"""A package with the name and the shape of torch, as far as the template uses it, which weighs next
to nothing. For tests of our own rules; what depends on torch is tested with the real one."""

import logging  # noqa: F401  # as torch does, like `random`

from . import random  # noqa: F401
from .random import default_generator, initial_seed, manual_seed  # noqa: F401
