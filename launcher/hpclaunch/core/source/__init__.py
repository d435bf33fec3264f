"""Finds out what a program does before it imports torch, by reading its source."""
