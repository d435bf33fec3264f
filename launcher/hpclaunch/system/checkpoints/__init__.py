"""The search for the newest complete checkpoint. It writes nothing.
Each format is a file in `formats/`; the types that they share are in `candidates.py`.

The agent runs the search in a separate process (`service.py`, used through `client.py`): reading a
large checkpoint takes long, and a file system may hang, but the agent's loop must not wait. That
process has no site-packages, so this package needs no library but Python's own.
"""

READS = ("auto", "full")  # values of --verify that read bytes: as many as time allows, or all
ALL = (0, 1)  # share 0 of 1: everything
AHEAD = 2.0  # seconds of reading for each checkpoint with --verify auto
