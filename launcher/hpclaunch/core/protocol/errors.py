"""The exception for a user's mistake."""


class UsageError(Exception):
    """Something that the user wrote or set up cannot work. Ends as one line and exit code 2.

    The message says what is wrong, where, and what to do about it.
    """
