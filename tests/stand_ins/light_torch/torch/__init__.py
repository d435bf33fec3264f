"""Stand-in for torch that imports in milliseconds.

It has only what the template and the tests' scripts use. Behaviour that depends on torch is tested
with the real one.
"""

# ruff: noqa: F401

# The real torch imports these modules too, and the template has them in any case.
import ctypes
import gc
import importlib.util
import json
import logging
import pkgutil
import signal
import socket
import types

from . import nn, optim, random
from .random import default_generator, initial_seed, manual_seed
from .serialization import load, save
from .tensors import Tensor, tensor, zeros

__version__ = "2.13.0"
version = types.SimpleNamespace(cuda=None, hip=None)
cuda = types.SimpleNamespace(is_available=lambda: False)
