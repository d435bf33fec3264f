"""What runs beside and inside the workers, in processes of their own, never in the agent's.

These files use the standard library alone (and torch, in the store's process) and are started by
their path, so that they owe nothing to the user's environment.
"""
