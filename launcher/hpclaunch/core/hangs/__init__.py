"""Hangs: when one is suspected, where the workers are in their program, and who is at fault."""
