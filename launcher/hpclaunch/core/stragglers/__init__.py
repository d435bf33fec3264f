"""Stragglers: ranks for which the others wait, step after step, and why they are late."""
