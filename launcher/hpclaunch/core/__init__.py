"""The decisions of an agent, and nothing else.

Code in this package depends on its arguments alone: it uses no clock, socket, process, file or
environment variable. What happens outside comes in as events (`protocol/events.py`), each with its
time. What is to be done goes out as effects (`protocol/effects.py`), which the agent carries out.
This makes it possible to simulate whole clusters, and to decide a recorded job once more.

Start reading with `control.py`. It joins the two sides of an agent: `member/`, which every agent
has, and `head/`, which only the leading agent has. The agents agree on who leads in `consensus/`;
docs/protocol.md explains how. `placement/` and `health/` hold rules that both sides use, `source/`
reads the user's programs, and `protocol/` defines the data that all of them share.
"""
