"""p(R|s), from which the threshold theta_delta(s) of Algorithm 1 is read.

theta_delta itself is `ReturnBuckets.threshold`: the largest r with P(R >= r | s) >= delta.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from brrcrl_lib.base.errors import KitError
from brrcrl_lib.nets import GaussianMixture

SOURCES = {
    "prior_samples": "average p(R|s,a_i) over actions of the prior (Algorithm 1, lines 4 and 5)",
    "value_model": "a network p(R|s) trained beside the model (the released code's default)",
    "prior_samples_logits": "softmax of the averaged log-probabilities (the released code's option; not a mixture)",
}


def return_distribution(
    model: Any,
    states: Tensor,
    prior: GaussianMixture,
    encoded: tuple[Tensor, Tensor | None],
    source: str,
    noise: Tensor,
    uniform: Tensor,
) -> Tensor:
    """p(R|s) [B, buckets] of standardised states [B, k]; `noise` [N, m] and `uniform` [N] make the prior's samples.

    `model` has `returns` (p(R|s,a), see methods/br_rcrl.py) and `value` (p(R|s)).
    """
    if source == "value_model":
        return model.value(states).exp()
    log_returns = model.returns.log_probs(encoded, prior.sample(noise, uniform))  # [B, N, buckets]
    if source == "prior_samples":
        return log_returns.exp().mean(1)
    if source == "prior_samples_logits":
        return torch.softmax(log_returns.mean(1), dim=-1)
    raise KitError(f"unknown threshold source '{source}' (valid: {', '.join(SOURCES)})")
