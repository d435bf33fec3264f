"""Hangs: when they are suspected, where the workers are then, and which rank is at fault."""
