"""Files and console: what workers write, and what the agent says and notes."""
