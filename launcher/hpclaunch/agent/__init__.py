"""The agent: one process for each task of the step.

`loop.py` connects the core, which decides, with the adapters, one for each thing outside: the
channels to other agents, the fork server, the log service, the search for checkpoints, the health
of the node, MPS, and others. `assembly.py` puts them together.
"""
