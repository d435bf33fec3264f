"""Processes: the fork server's client, signals to the agent, and CPU affinity."""
