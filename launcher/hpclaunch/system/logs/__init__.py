"""The log directory, the journal, and the console that shows what the workers write."""
