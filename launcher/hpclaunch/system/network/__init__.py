"""The network: the agents' channel, its keys and messages, routes, and what can be reached."""
