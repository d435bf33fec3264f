"""The stages of a job, a class for each: which may follow which is in `core/protocol/stages.py`."""
