"""The end of a job. `table.py` is read first: what may end a job, and what follows from each."""
