"""The decisions, and nothing else.

Everything in this package is a function of its arguments: no clock, no socket, no process, no
file, no environment. The outside comes in as events (`protocol/events.py`) with the time at which
they happened, and goes out as effects (`protocol/effects.py`) that the agent carries out. That is
what makes whole clusters simulable, and an incident replayable from its journal.

Begin with `control.py`, which puts the two sides of an agent together: `member/`, which every agent
has, and `head/`, which the one that leads has as well. Who leads is agreed upon in `consensus/`;
docs/protocol.md tells how. `placement/` and `health/` are the rules that both sides ask, `source/`
reads programs, and `protocol/` has the nouns of them all.
"""
