"""Have all workers of a running job start again from the newest checkpoint.

    hpclaunch restart 71

It counts as no failure.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from hpclaunch.core.protocol.model import Request

from . import requests

prepare_parser = requests.prepare_parser


def run(options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    return requests.make(Request.RESTART, options, environ)
