"""`KitError`: what a user can mend, in one sentence."""

from __future__ import annotations


class KitError(ValueError):
    """A request or a file that the kit cannot work with; the message says what was wrong, where, and what mends it.

    The command line prints it without a traceback. Everything else that is raised is a bug and keeps its own.
    """
