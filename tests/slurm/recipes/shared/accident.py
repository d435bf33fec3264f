"""SIGKILL of a rank, as by the out-of-memory killer, once per job: ACCIDENT=RANK."""

import os
import signal


def accident(rank):
    first_round = os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0"
    if first_round and os.environ.get("ACCIDENT") == str(rank):
        os.kill(os.getpid(), signal.SIGKILL)
