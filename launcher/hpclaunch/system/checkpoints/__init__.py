"""Checkpoints as people save them: which there are, which is the newest, and whether it is
complete. Reads only. A way to save is a file in `formats/`; `candidates.py` has the nouns.

All of it but `client.py` runs in a process of its own (`service.py`): to look at a large checkpoint
takes long, and in a file system that hangs it takes for ever, and neither may stop the agent's
loop. That process has no site-packages: standard library only.
"""

READS = ("auto", "full")  # of --verify: bytes are read too; as many as there is time for, or all
ALL = (0, 1)  # the only one of one share
AHEAD = 2.0  # seconds that are spent on reading a checkpoint, where not all of it is to be read
