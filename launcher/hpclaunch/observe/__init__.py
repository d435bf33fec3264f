"""Everything that people see of a job, made of facts and snapshots. Nothing is decided here."""
