"""Hangs: when workers are suspected of one, where they are, and which one is at fault."""
