"""One agent's own side: its worker group, how it stops, what it reports."""
