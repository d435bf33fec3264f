"""Give the workers of a running job notice now, as before its time limit: all of them before the
same step, so that they can save.

    hpclaunch notice 71
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from hpclaunch.core.protocol.model import Request

from . import requests

prepare_parser = requests.prepare_parser


def run(options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    return requests.make(Request.NOTICE, options, environ)
