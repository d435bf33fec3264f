"""Start all workers of a running job again, from the newest checkpoint.

    hpclaunch restart 71

This does not count as a failure.
"""

from hpclaunch.core.protocol.model import Request

from .requests import command, prepare_parser

__all__ = ["prepare_parser", "run"]

run = command(Request.RESTART)
