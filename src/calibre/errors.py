"""Mistakes that a person can put right: shown as one message, never as a traceback."""


class UserError(ValueError):
    """Says which key, file or client is wrong, what is wrong with it, and what would work."""
