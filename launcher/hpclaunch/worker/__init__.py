"""What runs beside and inside the workers, in processes of their own, never in the agent's.

Beside them run the fork server (`fork_server.py`) and the MPS keeper (`mps_keeper.py`), which are
isolated from the user's environment and use the standard library alone. Agents, the fork server,
the keeper and the template speak in typed messages (`messages.py`, and a file for each protocol).
`site/` is imported by every Python below a worker, and `measurement.py` is the script of
`hpclaunch doctor --measure`.
"""
