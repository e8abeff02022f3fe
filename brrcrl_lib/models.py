"""The networks of BR-RCRL for continuous actions.

Sign convention, here and everywhere: energy is low where an action is likely,

    E(a | s, R) = -log p(a | s) - log p(R | s, a)                                   (Section 4.1)

Whatever depends on the state alone (the prior's parameters, the state's share of the return model's first
layer) is computed once per state and then shared by all actions that are compared in that state.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn

from brrcrl_lib.returns import ReturnBuckets

FUSIONS = ("early", "late")
HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)


def mlp(inputs: int, hidden: Sequence[int], outputs: int) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    sizes = (inputs, *hidden)
    layers: list[nn.Module] = []
    for width_in, width_out in pairwise(sizes):
        layers += [nn.Linear(width_in, width_out), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], outputs))


@dataclass(frozen=True)
class GaussianMixture:
    """A batch of action distributions, one per state: diagonal Gaussians, optionally mixed and tanh-squashed."""

    mean: Tensor  # [B, K, m]
    log_std: Tensor  # [B, K, m]
    log_weight: Tensor  # [B, K], normalised
    low: Tensor  # [m], used by the squashed version and for clipping samples
    high: Tensor  # [m]
    squash: bool

    def log_prob(self, actions: Tensor) -> Tensor:
        """log p(a|s) [B, N] of actions [B, N, m]; exact."""
        correction: Tensor | float = 0.0
        if self.squash:
            half = (self.high - self.low) / 2
            unit = ((actions - self.low) / half - 1).clamp(-1 + 1e-6, 1 - 1e-6)
            actions = torch.atanh(unit)
            correction = (torch.log1p(-unit.square()) + half.log()).sum(-1)  # log |da/du|
        z = (actions.unsqueeze(2) - self.mean.unsqueeze(1)) * (-self.log_std).exp().unsqueeze(1)  # [B, N, K, m]
        per_component = -0.5 * z.square().sum(-1) - (self.log_std + HALF_LOG_TWO_PI).sum(-1).unsqueeze(1)
        if self.mean.shape[1] == 1:
            return per_component.squeeze(2) - correction
        return torch.logsumexp(per_component + self.log_weight.unsqueeze(1), dim=2) - correction

    def sample(self, noise: Tensor, uniform: Tensor) -> Tensor:
        """Actions [B, N, m] inside the box, from standard normal `noise` and `uniform`.

        The random numbers are [B, N, m] and [B, N], or [N, m] and [N] to be shared by all states: then a state's
        samples do not depend on its neighbours in the batch.
        """
        if self.mean.shape[1] == 1:
            mean, log_std = self.mean, self.log_std  # [B, 1, m]
        else:
            cumulative = self.log_weight.exp().cumsum(-1)[:, None, :-1]  # [B, 1, K - 1]
            component = (uniform.unsqueeze(-1) > cumulative).sum(-1)  # [B, N]
            index = component.unsqueeze(-1).expand(-1, -1, self.mean.shape[-1])
            mean, log_std = self.mean.gather(1, index), self.log_std.gather(1, index)
        actions = mean + log_std.exp() * noise
        return self.squashed(actions) if self.squash else self.clip(actions)

    def squashed(self, raw: Tensor) -> Tensor:
        return self.low + (raw.tanh() + 1) * (self.high - self.low) / 2

    def clip(self, actions: Tensor) -> Tensor:
        return torch.minimum(torch.maximum(actions, self.low), self.high)

    def mode(self) -> Tensor:
        """The mean of the heaviest component, [B, m], inside the box: what behaviour cloning plays."""
        best = self.log_weight.argmax(-1)[:, None, None].expand(-1, 1, self.mean.shape[-1])
        mean = self.mean.gather(1, best).squeeze(1)
        return self.squashed(mean) if self.squash else self.clip(mean)


class ActionPrior(nn.Module):
    """p(a|s): easy to sample, exact log-likelihood. One diagonal Gaussian by default."""

    def __init__(
        self,
        observation_size: int,
        low: Tensor,
        high: Tensor,
        hidden: Sequence[int] = (256, 256, 256),
        components: int = 1,
        squash: bool = False,
        log_std_range: tuple[float, float] = (-4.0, 15.0),
        condition_size: int = 0,
    ) -> None:
        super().__init__()
        self.action_size, self.components, self.squash, self.log_std_range = len(low), components, squash, log_std_range
        self.net = mlp(observation_size + condition_size, hidden, components * (2 * self.action_size + 1))
        self.register_buffer("low", low)
        self.register_buffer("high", high)

    def forward(self, states: Tensor) -> GaussianMixture:
        """The distribution of actions in each of the standardised states [B, k]."""
        shape = (len(states), self.components, self.action_size)
        split = [self.components * self.action_size] * 2 + [self.components]
        mean, log_std, weight = self.net(states).split(split, dim=-1)
        return GaussianMixture(
            mean.view(shape),
            log_std.view(shape).clamp(*self.log_std_range),
            weight.log_softmax(-1),
            cast(Tensor, self.low),
            cast(Tensor, self.high),
            self.squash,
        )


class ReturnModel(nn.Module):
    """p(R|s,a) over return buckets.

    `early` fusion: state and action enter the first of the hidden layers, which is split into a state part and an
    action part. `late` fusion: a deep encoder sees the state once, and only one narrow layer sees each action.
    """

    def __init__(
        self,
        observation_size: int,
        action_size: int,
        buckets: int,
        hidden: Sequence[int] = (256, 256, 256),
        fusion: str = "late",
        head_width: int = 128,
    ) -> None:
        super().__init__()
        self.fusion = fusion
        if fusion == "early":
            self.state_part = nn.Linear(observation_size, hidden[0])
            self.action_part = nn.Linear(action_size, hidden[0], bias=False)
            self.trunk = mlp(hidden[0], hidden[1:], buckets)
        elif fusion == "late":
            self.encoder = nn.Sequential(mlp(observation_size, hidden[:-1], hidden[-1]), nn.ReLU())
            self.state_part = nn.Linear(hidden[-1], head_width)
            self.action_part = nn.Linear(action_size, head_width, bias=False)
            self.state_logits = nn.Linear(hidden[-1], buckets)
            self.trunk = nn.Sequential(nn.Linear(head_width, buckets))
        else:
            raise ValueError(f"unknown fusion '{fusion}' (valid: {', '.join(FUSIONS)})")

    def encode(self, states: Tensor) -> tuple[Tensor, Tensor | None]:
        """What the state alone contributes: [B, width], and for late fusion its own logits [B, buckets]."""
        if self.fusion == "late":
            features = self.encoder(states)
            return self.state_part(features), self.state_logits(features)
        return self.state_part(states), None

    def log_probs(self, encoded: tuple[Tensor, Tensor | None], actions: Tensor) -> Tensor:
        """log p(R|s,a) [B, N, buckets] for actions [B, N, m] in states encoded by `encode`."""
        return self.logits(encoded, actions).log_softmax(-1)

    def logits(self, encoded: tuple[Tensor, Tensor | None], actions: Tensor) -> Tensor:
        """The same before normalisation."""
        state, own_logits = encoded
        weight = self.action_part.weight.t().expand(len(actions), -1, -1)  # one copy in memory, seen by every state
        hidden = torch.baddbmm(state.unsqueeze(1), actions, weight).relu_()  # state part + action part, in one go
        logits = self.trunk(hidden)
        if own_logits is not None:
            logits = logits + own_logits.unsqueeze(1)
        return logits


class ValueModel(nn.Module):
    """p(R|s) over return buckets; the released code takes its threshold from such a network."""

    def __init__(self, observation_size: int, buckets: int, hidden: Sequence[int] = (256, 256, 256)) -> None:
        super().__init__()
        self.net = mlp(observation_size, hidden, buckets)

    def forward(self, states: Tensor) -> Tensor:
        """log p(R|s) [B, buckets]."""
        return self.net(states).log_softmax(-1)


class Standardiser(nn.Module):
    """(s - mean) / std, with the statistics of the training data kept beside the weights."""

    def __init__(self, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    def forward(self, observations: Tensor) -> Tensor:
        return (observations - cast(Tensor, self.mean)) / cast(Tensor, self.std)


class BayesianModel(nn.Module):
    """BR-RCRL: prior p(a|s), return model p(R|s,a) and value model p(R|s), with the buckets R is counted in."""

    def __init__(
        self,
        standardiser: Standardiser,
        prior: ActionPrior,
        returns: ReturnModel,
        value: ValueModel,
        buckets: ReturnBuckets,
    ) -> None:
        super().__init__()
        self.standardise, self.prior, self.returns, self.value = standardiser, prior, returns, value
        self.buckets = buckets

    def energy(
        self, prior: GaussianMixture, encoded: tuple[Tensor, Tensor | None], actions: Tensor, bucket: Tensor
    ) -> Tensor:
        """E^delta(a|s) = -log p(a|s) - log p(R >= theta|s,a) [B, N] (Proposition 1).

        `prior` and `encoded` describe the states, actions are [B, N, m], and theta is the lower edge of `bucket` [B].
        Differs from the paper: Proposition 1 writes R > theta; its definition of pi^delta and its code use R >= theta,
        and with buckets only the latter always has positive probability.
        """
        probabilities = self.returns.logits(encoded, actions).softmax(-1)  # [B, N, buckets]
        index = torch.arange(probabilities.shape[-1], device=probabilities.device)
        reached = (index >= bucket.unsqueeze(-1)).to(probabilities).unsqueeze(-1)  # [B, buckets, 1]
        tail = (probabilities @ reached).squeeze(-1)
        return -prior.log_prob(actions) - tail.clamp(min=torch.finfo(tail.dtype).tiny).log()  # never infinite


class RewardConditionedPolicy(nn.Module):
    """Vanilla RCRL: p(a|s,R) with the return as one more input, scaled to [0, 1] over the bucket range.

    The value model p(R|s) beside it is there for adaptive targets alone, so that vanilla RCRL can be given them too.
    """

    def __init__(
        self, standardiser: Standardiser, prior: ActionPrior, value: ValueModel, buckets: ReturnBuckets
    ) -> None:
        super().__init__()
        self.standardise, self.policy, self.value, self.buckets = standardiser, prior, value, buckets

    def forward(self, observations: Tensor, returns: Tensor) -> GaussianMixture:
        """p(a|s,R) for observations [B, k] and target returns [B]."""
        scaled = (returns - self.buckets.low) / (self.buckets.high - self.buckets.low)
        return self.policy(torch.cat([self.standardise(observations), scaled.unsqueeze(-1)], dim=-1))


class CloningModel(nn.Module):
    """Behaviour cloning: p(a|s) alone."""

    def __init__(self, standardiser: Standardiser, prior: ActionPrior) -> None:
        super().__init__()
        self.standardise, self.prior = standardiser, prior
