"""Looks at the text of a script: what it imports, and what it sets before."""
