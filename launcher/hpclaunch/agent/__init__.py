"""The agent: one per task of the step.

`loop.py` is its only loop, between the core, which decides, and the adapters, one for each thing
outside: the channels to other agents, the fork server, the log service, the search for
checkpoints, the health of the node, MPS, and others. `assembly.py` puts them together.
"""
