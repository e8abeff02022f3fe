"""Fixtures that several tests share."""

from __future__ import annotations

import pytest
import torch
from synthetic import synthetic_dataset

from brrcrl_lib.data.vectors import OfflineDataset

torch.set_num_threads(1)


@pytest.fixture
def dataset() -> OfflineDataset:
    return synthetic_dataset()
