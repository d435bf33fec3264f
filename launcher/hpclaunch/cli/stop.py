"""End a running job in order, as SIGTERM would: workers get SIGTERM, and time to save.

hpclaunch stop 71
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from hpclaunch.core.protocol.model import Request

from . import requests

prepare_parser = requests.prepare_parser


def run(options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    return requests.make(Request.STOP, options, environ)
