"""End a running job in order, as SIGTERM would.

    hpclaunch stop 71

Its workers get SIGTERM, and time to save (--grace).
"""

from hpclaunch.core.protocol.model import Request

from .requests import command, prepare_parser

__all__ = ["prepare_parser", "run"]

run = command(Request.STOP)
