"""The text of a script, and the command line of its interpreter: can it start warm?"""
