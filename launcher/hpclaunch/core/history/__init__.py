"""A job over time, as values: the samples that agents note, and a launch's past."""
