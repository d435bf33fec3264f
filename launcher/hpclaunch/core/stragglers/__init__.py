"""Stragglers: ranks for which the others wait in every step, and why they are late."""
