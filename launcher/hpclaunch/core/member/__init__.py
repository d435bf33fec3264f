"""The member's side: an agent's worker group, how it is stopped, and what the agent reports."""
