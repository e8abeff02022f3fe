"""Small networks of BR-RCRL and a batch for them: 3 observations, 2 actions in a box that is not square."""

from __future__ import annotations

from typing import Any

import torch

from brrcrl_lib.data.batch import Batch, Facts
from brrcrl_lib.methods.br_rcrl import ActionPrior, BayesianModel, ReturnModel
from brrcrl_lib.nets import DistributionNet, GaussianHead, Standardiser
from brrcrl_lib.returns import ReturnBuckets

LOW, HIGH = torch.tensor([-1.0, -2.0]), torch.tensor([1.0, 2.0])
BUCKETS = ReturnBuckets(0.0, 10.0, 6)


def make_prior(**options: Any) -> ActionPrior:
    """p(a|s) with random weights; `options` are those of GaussianHead."""
    torch.manual_seed(0)
    return ActionPrior(3, (16, 16), GaussianHead(LOW, HIGH, **options))


def make_model(fusion: str = "early", **options: Any) -> BayesianModel:
    """Prior, return model and value model with random weights; `options` are those of the prior."""
    torch.manual_seed(1)
    standardiser = Standardiser(torch.zeros(3), torch.ones(3))
    returns = ReturnModel(3, 2, BUCKETS.count, (16, 16, 16), fusion, head_width=8)
    value = DistributionNet(3, BUCKETS.count, (16, 16))
    return BayesianModel(standardiser, make_prior(**options), returns, value, BUCKETS)


def make_batch(size: int = 6, seed: int = 3) -> Batch:
    """Random transitions whose returns spread over the buckets."""
    generator = torch.Generator().manual_seed(seed)
    return Batch(
        observations=torch.randn(size, 3, generator=generator),
        actions=torch.rand(size, 2, generator=generator),
        returns=10 * torch.rand(size, generator=generator),
        rewards=torch.rand(size, generator=generator),
        done=torch.zeros(size, dtype=torch.bool),
        indices=torch.arange(size),
    )


def make_facts(**options: Any) -> Facts:
    """What `make_batch` could have come from."""
    settings: dict[str, Any] = {
        "dataset": "test/made-up-v0",
        "env": None,
        "observation_shape": (3,),
        "discount": 0.99,
        "reward_clip": None,
        "return_range": (0.0, 10.0),
        "return_quantiles": (0.0, 5.0, 10.0),
        "action_low": tuple(LOW.tolist()),
        "action_high": tuple(HIGH.tolist()),
    }
    return Facts(**{**settings, **options})
