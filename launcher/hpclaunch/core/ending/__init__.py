"""The end of a job. Read `table.py` first: what may end a job, and what follows from each cause."""
