"""The decisions, and nothing else.

Everything in this package is a function of its arguments: no clock, no socket, no process, no
file, no environment. The outside comes in as events (`events`) with the time they happened, and
goes out as effects (`effects`) that the agent carries out. That is what makes whole clusters
simulable, and an incident replayable from its journal.
"""
