"""Processes: the fork server's client, stacks, commands, signals to the agent, and CPU affinity."""
