"""The benchmark's slow reference computes the same numbers as the library."""

from __future__ import annotations

import pytest
import torch
from brrcrl_lib.losses import Negatives, bayesian_loss
from test_losses import make_batch
from test_models import make_model

from brrcrl_lib.inference.optimizers import DerivativeFree
from brrcrl_lib.study.analysis.literal import literal_loss, literal_minimise
from brrcrl_lib.tools.bench.bench import _solve


@pytest.mark.parametrize("objective", ["paper", "authors"])
def test_literal_loss_is_the_same_number(objective: str) -> None:
    model, batch = make_model(), make_batch()
    negatives = Negatives.draw(batch.actions, 5, 0.4, torch.Generator().manual_seed(0))
    fast = bayesian_loss(model, batch, negatives, objective, 0.7)["loss"]
    assert float(fast.detach()) == pytest.approx(
        float(literal_loss(model, batch, negatives, objective, 0.7).detach()), abs=1e-5
    )


@torch.no_grad()
def test_literal_optimiser_finds_the_same_energy() -> None:
    model, state, bucket = make_model(), torch.randn(1, 3), torch.tensor([3])
    optimizer = DerivativeFree(64, 3)
    slow = literal_minimise(model, state, bucket, optimizer, torch.Generator().manual_seed(0))
    torch.testing.assert_close(slow.energies, _solve(model, state, bucket, optimizer, seed=0))
