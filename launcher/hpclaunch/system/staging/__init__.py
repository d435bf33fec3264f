"""Checkpoints in memory: the script saves into a staging directory on this node, and a separate
process, the stager (`service.py`, used through `client.py`), copies what is complete to storage.

Which checkpoints are there, which is the newest, and which are complete: all of that is decided by
the search (`system/checkpoints/`), in the staging directory and on storage alike. This package
knows no format. With one node, it needs the standard library only.
"""
