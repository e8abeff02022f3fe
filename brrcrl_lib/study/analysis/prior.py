"""The shape of a learned prior p(a|s), and what the released code's contrast does to it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from brrcrl_lib.data.vectors import OfflineDataset
from brrcrl_lib.study.analysis.held_out import spread_out


@torch.no_grad()
def prior_shape(model: Any, dataset: OfflineDataset, count: int = 4000) -> tuple[Tensor, Tensor]:
    """Standard deviations [n, m] of p(a|s) (of its first component), and |mode - recorded action| [n, m]."""
    batch = dataset.batch(spread_out(dataset, count))
    prior = model.prior(model.standardise(batch.observations)) if hasattr(model, "prior") else model(batch.observations)
    return prior.log_std[:, 0].exp(), (prior.mode() - batch.actions).abs()


def contrast_widening(std: float, dimensions: int, uniform_share: float = 0.5) -> float:
    """How much wider than the data the authors' contrast wants the prior, for Gaussian data with this `std`.

    With negatives from q = (1 - u) f + u U, InfoNCE is best served by f = c p / q, where p is the data's density, f
    the prior's and U the uniform one on [-1, 1]^m: a quadratic equation in f, whose c makes f integrate to 1.
    Solved along the radius; the box's walls and the Gaussian form of f are left aside.
    """
    if not 0 <= uniform_share < 1:
        raise ValueError(f"uniform_share must lie in [0, 1) here; got {uniform_share}")
    radius = np.linspace(0, 14 * std, 8001)[1:]
    log_p = -0.5 * (radius / std) ** 2 - dimensions * math.log(std * math.sqrt(2 * math.pi))
    log_sphere = math.log(2) + dimensions / 2 * math.log(math.pi) - math.lgamma(dimensions / 2)
    shell = np.exp(log_sphere + (dimensions - 1) * np.log(radius)) * (radius[1] - radius[0])
    a, b = 1 - uniform_share, uniform_share * 2.0**-dimensions
    low, high = -100.0, 100.0
    for _ in range(80):  # bisection for log c
        middle = (low + high) / 2
        cp = np.exp(middle + log_p)
        f = 2 * cp / (b + np.sqrt(b * b + 4 * a * cp))  # the positive root, written to avoid cancellation
        low, high = (middle, high) if (f * shell).sum() < 1 else (low, middle)
    return float(np.sqrt((f * shell * radius**2).sum() / (f * shell).sum() / dimensions) / std)
