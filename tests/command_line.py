"""The `brrcrl` command as a person calls it."""

import pytest

from brrcrl_lib.cli import main


def call(*words: object) -> int:
    """Run the command; its exit code."""
    with pytest.raises(SystemExit) as stop:
        main([str(word) for word in words])
    return stop.value.code if isinstance(stop.value.code, int) else 1
