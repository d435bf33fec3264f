"""Checkpoints that several nodes hold in memory: which to restore, to copy, to drop (pure)."""
