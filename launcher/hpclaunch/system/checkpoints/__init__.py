"""The search for checkpoints: which there are, which is the newest, and whether it is complete.
Nothing is ever written. Each format is a file in `formats/`; the nouns are in `candidates.py`.

All of this but `client.py` runs in a process of its own (`service.py`), since examining a large
checkpoint takes long, and on a file system that hangs it never ends: neither may stop the agent's
loop. That process has no site-packages, so only the standard library is used here.
"""

READS = ("auto", "full")  # the values of --verify with which bytes are read: some, or all
ALL = (0, 1)  # share 0 of 1: everything
AHEAD = 2.0  # seconds for reading a checkpoint with --verify auto
