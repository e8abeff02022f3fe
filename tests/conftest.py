"""Fixtures that several tests share."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from discrete_cases import write_cartpole
from frame_cases import small_store
from synthetic import synthetic_dataset

from brrcrl_lib.data.vectors import OfflineDataset

torch.set_num_threads(1)


@pytest.fixture
def dataset() -> OfflineDataset:
    return synthetic_dataset()


@pytest.fixture(scope="session")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """frames/ladder/qbert with sticky actions, and minari/ with CartPole played at random."""
    base = tmp_path_factory.mktemp("places")
    small_store(base / "frames", "qbert", base / "policies", sticky_actions=True)
    write_cartpole(base / "minari")
    return base


@pytest.fixture
def frames(places: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Frame stores are looked for in `places`."""
    monkeypatch.setenv("BRRCRL_FRAMES_PATH", str(places / "frames"))
    return places / "frames"


@pytest.fixture
def cartpole(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Datasets of vectors are looked for in `places`."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(places / "minari"))
