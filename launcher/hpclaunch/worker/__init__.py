"""What runs beside and inside the workers, in processes of their own, never in the agent's.

Beside them run the fork server (`fork_server.py`) and the MPS keeper (`mps_keeper.py`), which are
isolated from the user's environment and use the standard library alone. `site/` is imported by
every Python below a worker, and `measurement.py` is the script of `hpclaunch doctor --measure`.
"""
