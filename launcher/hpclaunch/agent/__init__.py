"""The agent: one per task of the step.

`loop.py` is its only loop, between the core, which decides, and the system. The other files are
the parts that the loop holds together: the configuration, the channels to other agents, the
workers, the checkpoint to resume from, the health of the node, MPS, and the output.
"""
