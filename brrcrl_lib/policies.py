"""Policies that can be evaluated: BR-RCRL and its simplest rivals behind one protocol."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from brrcrl_lib.inference.optimizers import CrossEntropy, Optimizer, Problem
from brrcrl_lib.inference.targets import Adaptive, Constant, Target
from brrcrl_lib.inference.threshold import SOURCES, return_distribution
from brrcrl_lib.models import BayesianModel, CloningModel, GaussianMixture, RewardConditionedPolicy

MODES = ("best", "sample")


class Policy(Protocol):
    """Decides for n episodes side by side; `keep` drops those that have ended."""

    trace: dict[str, Tensor]  # what the last decision rested on, each [B]

    def reset(self, episodes: int) -> None: ...

    def act(self, observations: Tensor) -> Tensor:
        """Actions [B, m], or [B] int64 of a discrete set, for raw observations [B, ...]."""
        ...

    def observe(self, rewards: Tensor) -> None: ...

    def keep(self, active: Tensor) -> None: ...


@dataclass
class BayesianPolicy:
    """BR-RCRL with adaptive inference (Algorithm 1), or with any other target rule."""

    model: BayesianModel
    target: Target = field(default_factory=Adaptive)
    optimizer: Optimizer = field(default_factory=CrossEntropy)
    source: str = "prior_samples"
    """Where p(R|s) comes from: see inference/threshold.py."""
    prior_samples: int = 64
    """Actions averaged for p(R|s), and the candidates of mode `sample`."""
    mode: str = "best"
    """`best`: the lowest-energy action of pi^delta. `sample`: a draw from it."""
    generator: torch.Generator | None = None
    trace: dict[str, Tensor] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"unknown mode '{self.mode}' (valid: {', '.join(MODES)})")
        if self.source not in SOURCES:
            raise ValueError(f"unknown threshold source '{self.source}' (valid: {', '.join(SOURCES)})")

    def reset(self, episodes: int) -> None:
        self.target.reset(episodes)

    @torch.no_grad()
    def act(self, observations: Tensor) -> Tensor:
        model, buckets = self.model, self.model.buckets
        states = model.standardise(observations)
        prior, encoded = model.prior(states), model.returns.encode(states)  # once per state
        problem = Problem(
            energy=lambda actions: model.energy(prior, encoded, actions, bucket),
            sample_prior=prior.sample,
            low=prior.low,
            high=prior.high,
        )
        noise = problem.normal(self.prior_samples, self.generator)
        uniform = problem.uniform(self.prior_samples, self.generator)
        distribution = return_distribution(model, states, prior, encoded, self.source, noise, uniform)
        bucket = self.target.bucket(distribution, buckets)  # [B]
        if self.mode == "best":
            solution = self.optimizer.minimise(problem, self.generator)
            actions, energies = solution.actions, solution.energies
        else:
            actions, energies = self._sample(problem, prior)
        expected = model.returns.log_probs(encoded, actions.unsqueeze(1)).squeeze(1).exp()  # [B, buckets]
        centres = buckets.decode(torch.arange(buckets.count, device=expected.device))
        self.trace = {
            "bucket": bucket,
            "target": buckets.lower_edges(bucket.device)[bucket],
            "predicted": expected @ centres,
            "energy": energies,
        }
        return actions

    def _sample(self, problem: Problem, prior: GaussianMixture) -> tuple[Tensor, Tensor]:
        """A draw from pi^delta: prior samples, one of them kept in proportion to p(R >= theta|s,a) (Proposition 1)."""
        candidates = problem.start(self.prior_samples, self.generator)  # [B, N, m]
        energies = problem.energy(candidates)
        # exp(-E) = p(a|s) p(R >= theta|s,a), and the candidates are already spread like p(a|s).
        log_weights = -energies - prior.log_prob(candidates)
        cumulative = torch.softmax(log_weights, dim=1).cumsum(1)
        uniform = problem.uniform(1, self.generator) * cumulative[:, -1:]
        index = (cumulative < uniform).sum(1, keepdim=True).clamp(max=candidates.shape[1] - 1)  # [B, 1]
        chosen = candidates.gather(1, index.unsqueeze(-1).expand(-1, 1, candidates.shape[-1])).squeeze(1)
        return chosen, energies.gather(1, index).squeeze(1)

    def observe(self, rewards: Tensor) -> None:
        self.target.observe(rewards)

    def keep(self, active: Tensor) -> None:
        self.target.keep(active)


@dataclass
class CloningPolicy:
    """Behaviour cloning: the mode of p(a|s), whatever the return."""

    model: BayesianModel | CloningModel
    trace: dict[str, Tensor] = field(default_factory=dict, init=False)

    def reset(self, episodes: int) -> None: ...

    @torch.no_grad()
    def act(self, observations: Tensor) -> Tensor:
        return self.model.prior(self.model.standardise(observations)).mode()

    def observe(self, rewards: Tensor) -> None: ...

    def keep(self, active: Tensor) -> None: ...


@dataclass
class VanillaPolicy:
    """Vanilla reward-conditioned RL: the mode of p(a|s,R), with R from any target rule.

    An adaptive target asks for the middle of the bucket of theta_delta(s): vanilla RCRL conditions on one return,
    not on a return or more.
    """

    model: RewardConditionedPolicy
    target: Target
    trace: dict[str, Tensor] = field(default_factory=dict, init=False)

    def reset(self, episodes: int) -> None:
        self.target.reset(episodes)

    @torch.no_grad()
    def act(self, observations: Tensor) -> Tensor:
        if isinstance(self.target, Constant):
            wanted = self.target.wanted.to(observations.device, torch.float32)
        else:
            distribution = self.model.value(self.model.standardise(observations)).exp()
            wanted = self.model.buckets.decode(self.target.bucket(distribution, self.model.buckets))
        self.trace = {"target": wanted}
        return self.model(observations, wanted).mode()

    def observe(self, rewards: Tensor) -> None:
        self.target.observe(rewards)

    def keep(self, active: Tensor) -> None:
        self.target.keep(active)
