"""What happens to a rank that the memory killer picks: ACCIDENT=RANK has it happen once per job."""

import os
import signal


def accident(rank):
    first_round = os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0"
    if first_round and os.environ.get("ACCIDENT") == str(rank):
        os.kill(os.getpid(), signal.SIGKILL)
