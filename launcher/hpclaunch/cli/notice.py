"""Give the workers of a running job notice now, as before its time limit.

    hpclaunch notice 71

All workers get it before the same step, so that they can save.
"""

from hpclaunch.core.protocol.model import Request

from .requests import command, prepare_parser

__all__ = ["prepare_parser", "run"]

run = command(Request.NOTICE)
