"""The programs that run beside and inside the workers, never in the agent's process.

Beside them run the fork server (`fork_server.py`) and the MPS keeper (`mps_keeper.py`), which are
isolated from the user's environment and only use the standard library. Agents, the fork server, the
keeper and the template exchange typed messages (`messages.py`, and a file for each protocol).
`site/` is imported by every Python below a worker, and `measurement.py` is the script of
`hpclaunch doctor --measure`.
"""
