"""`KitError`: something that a user can mend, in one sentence."""

from __future__ import annotations


class KitError(ValueError):
    """What was wrong, where, and what fixes it. The command line prints it without a traceback."""
