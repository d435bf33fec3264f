"""The agent: its loop, and the parts that it holds together."""
