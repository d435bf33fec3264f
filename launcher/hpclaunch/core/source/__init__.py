"""The text of a script and the command line of its interpreter: whether it can start warm."""
