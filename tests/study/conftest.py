"""What tests of runners and engines share: a dataset, the plugin, and a grid that nobody disturbed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from grid_cases import Kit, hopper_dataset, plugged_in

from brrcrl_lib.study.experiments.running import run_grid


@pytest.fixture(scope="session")
def hopper(tmp_path_factory) -> Path:
    """Folder of a small dataset."""
    return hopper_dataset(tmp_path_factory.mktemp("data"))


@pytest.fixture
def kit(hopper: Path, tmp_path: Path, monkeypatch) -> Iterator[Kit]:
    kit = Kit(hopper, tmp_path)
    for name, value in kit.variables.items():
        monkeypatch.setenv(name, value)
    with plugged_in():
        yield kit


@pytest.fixture(scope="session")
def undisturbed(hopper: Path, tmp_path_factory) -> Kit:
    """The grid `quick`, run by one runner whom nobody disturbed."""
    kit = Kit(hopper, tmp_path_factory.mktemp("undisturbed"))
    with pytest.MonkeyPatch.context() as patch, plugged_in():
        for name, value in kit.variables.items():
            patch.setenv(name, value)
        assert run_grid(kit.config("quick")) == 0
    assert all(kit.steps(seed) == list(range(40)) for seed in range(4))
    return kit
