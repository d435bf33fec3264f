"""Screens: pure text made of snapshots. Whoever shows them decides on width and colours."""
