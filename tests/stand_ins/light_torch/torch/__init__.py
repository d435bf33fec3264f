"""A package with the name and the shape of torch, as far as the template and the scripts of our
tests use it, which imports in milliseconds. For tests of our own rules; what depends on torch is
tested with the real one.
"""

# ruff: noqa: F401

# These too are in every process that has imported torch, and in the template in any case.
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
