"""BR-RCRL for continuous actions (Sections 4.1 and 4.2): learn p(a|s) and p(R|s,a), play what makes returns likely.

Sign convention, here and everywhere: energy is low where an action is likely,

    E(a | s, R) = -log p(a | s) - log p(R | s, a)                                   (Section 4.1)

Whatever depends on the state alone (the prior's parameters, the state's share of the return model's first
layer) is computed once per state and then shared by all actions that are compared in that state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from brrcrl_lib.base.errors import KitError
from brrcrl_lib.data.batch import Batch
from brrcrl_lib.inference.optimizers import OPTIMIZERS, CrossEntropy, Optimizer, Problem, make_optimizer
from brrcrl_lib.inference.threshold import SOURCES, return_distribution
from brrcrl_lib.methods.base import Method
from brrcrl_lib.methods.cloning import CloningPolicy
from brrcrl_lib.methods.settings import (
    PAPER_BOX,
    RELEASED_BOX,
    SMOKE,
    BayesianAct,
    BucketSettings,
    GaussianSettings,
    MethodConfig,
    at_least,
    in_range,
    one_of,
)
from brrcrl_lib.nets import DistributionNet, GaussianHead, GaussianMixture, Standardiser, make_head, mlp
from brrcrl_lib.policies import Chooser, Policy, TargetPolicy
from brrcrl_lib.returns import ReturnBuckets

FUSIONS = ("early", "late")
OBJECTIVES = ("paper", "authors")


# -- configuration -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BrRcrlConfig(BucketSettings, GaussianSettings, MethodConfig):
    """BR-RCRL on continuous actions: a prior p(a|s), a return model p(R|s,a) and a value model p(R|s)."""

    objective: str = "authors"
    """paper (likelihood of the prior plus InfoNCE on p(R|s,a)) or authors (InfoNCE on the whole energy)."""
    negatives: int = 16
    """Negative actions per transition, N_A'. The paper takes 256."""
    uniform_share: float | None = None
    """Share of negatives drawn uniformly from the action box; None: 0.5 for authors, 0 for paper."""
    return_weight: float = 1.0
    """lambda, the weight of L1. Zero switches L1 off."""
    hidden: tuple[int, ...] = (256, 256, 256)
    """Hidden layers of every network."""
    fusion: str = "late"
    """late (a light head per action: faster to train, `make bench` says how much) or early (state and action meet in
    the first layer, as in the released code)."""

    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "smoke": {**SMOKE, "batch_size": 64, "negatives": 8, "hidden": (32, 32)},
        # Differs from the released code, which takes 256 negatives: with 32 a training
        # already takes the better part of an hour on one core.
        "released": {**RELEASED_BOX, "negatives": 32, "fusion": "early", "bucket_range": "authors"},
        "paper": {**PAPER_BOX, "negatives": 256, "fusion": "early"},
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self, "objective", OBJECTIVES)
        one_of(self, "fusion", FUSIONS)
        at_least(self, 1, "negatives")
        at_least(self, 0, "return_weight")
        in_range(self, "uniform_share", 0, 1)
        if len(self.hidden) < 2 or min(self.hidden) < 1:
            raise KitError(f"hidden needs at least two layers of at least one unit; got {self.hidden}")

    @property
    def share_of_uniform(self) -> float:
        return self.uniform_share if self.uniform_share is not None else (0.5 if self.objective == "authors" else 0.0)


@dataclass(frozen=True)
class BrRcrlAct(BayesianAct):
    """How BR-RCRL is made to act."""

    optimizer: str = "cem"
    """cem (cross-entropy method), dfo (the paper's, 65,536 samples) or langevin."""
    samples: int | None = None
    """Samples per round of the optimiser; None: its own number."""
    source: str = "prior_samples"  # recorded rows were played so; new ones will say "auto" here
    """Where p(R|s) comes from: prior_samples (the paper), value_model (the released code), prior_samples_logits, or
    auto: as the objective that was trained, value_model for authors and prior_samples for paper."""

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self, "optimizer", OPTIMIZERS)
        one_of(self, "source", ("auto", *SOURCES))
        at_least(self, 2, "samples")

    def source_for(self, objective: str) -> str:
        """Where p(R|s) comes from in a model that was trained with `objective`."""
        if self.source != "auto":
            return self.source
        return "value_model" if objective == "authors" else "prior_samples"


# -- networks ----------------------------------------------------------------------------------------------------


class ActionPrior(nn.Module):
    """p(a|s): easy to sample, exact log-likelihood. One diagonal Gaussian by default."""

    def __init__(self, observation_size: int, hidden: Sequence[int], head: GaussianHead) -> None:
        super().__init__()
        self.net, self.head = mlp(observation_size, hidden, head.size), head

    def forward(self, states: Tensor) -> GaussianMixture:
        """The distribution of actions in each of the standardised states [B, k]."""
        return self.head(self.net(states))


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
        else:
            self.encoder = nn.Sequential(mlp(observation_size, hidden[:-1], hidden[-1]), nn.ReLU())
            self.state_part = nn.Linear(hidden[-1], head_width)
            self.action_part = nn.Linear(action_size, head_width, bias=False)
            self.state_logits = nn.Linear(hidden[-1], buckets)
            self.trunk = nn.Sequential(nn.Linear(head_width, buckets))

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


class BayesianModel(nn.Module):
    """Prior p(a|s), return model p(R|s,a) and value model p(R|s), with the buckets that R is counted in."""

    def __init__(
        self,
        standardiser: Standardiser,
        prior: ActionPrior,
        returns: ReturnModel,
        value: DistributionNet,
        buckets: ReturnBuckets,
    ) -> None:
        super().__init__()
        self.standardise, self.prior, self.returns, self.value = standardiser, prior, returns, value
        self.buckets = buckets

    def energy(
        self,
        prior: GaussianMixture,
        encoded: tuple[Tensor, Tensor | None],
        actions: Tensor,
        bucket: Tensor,
        prior_weight: float = 1.0,
    ) -> Tensor:
        """E^delta(a|s) = -alpha log p(a|s) - log p(R >= theta|s,a) [B, N] (Proposition 1, where alpha is 1).

        `prior` and `encoded` describe the states, actions are [B, N, m], and theta is the lower edge of `bucket` [B].
        Differs from the paper: Proposition 1 writes R > theta; its definition of pi^delta and its code use R >= theta,
        and with buckets only the latter always has positive probability. And `prior_weight` alpha may be another number
        than 1, because how far to trust the prior depends on the data (`kl_bound` of study/toys/theory.py has what that
        does to Theorem 1).
        """
        probabilities = self.returns.logits(encoded, actions).softmax(-1)  # [B, N, buckets]
        index = torch.arange(probabilities.shape[-1], device=probabilities.device)
        reached = (index >= bucket.unsqueeze(-1)).to(probabilities).unsqueeze(-1)  # [B, buckets, 1]
        tail = (probabilities @ reached).squeeze(-1)
        log_prior = prior.log_prob(actions)
        return -prior_weight * log_prior - tail.clamp(min=torch.finfo(tail.dtype).tiny).log()  # never infinite


# -- loss --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Negatives:
    """Random numbers from which negatives are made, drawn outside so that the loss itself is deterministic."""

    noise: Tensor  # [B, N, m], standard normal
    component: Tensor  # [B, N], uniform; picks the mixture component
    uniform: Tensor  # [B, M, m], uniform in [0, 1): the negatives spread over the action box

    @classmethod
    def draw(cls, actions: Tensor, count: int, uniform_share: float, generator: torch.Generator | None) -> Negatives:
        """`count` negatives for each of the actions [B, m], the given share of them uniform."""
        (batch, size), spread = actions.shape, round(count * uniform_share)
        return cls(
            noise=torch.randn(batch, count - spread, size, device=actions.device, generator=generator),
            component=torch.rand(batch, count - spread, device=actions.device, generator=generator),
            uniform=torch.rand(batch, spread, size, device=actions.device, generator=generator),
        )

    def actions(self, prior: GaussianMixture) -> Tensor:
        """The negatives A' [B, N + M, m]: samples of p(a|s), clipped to the box, and uniform ones."""
        with torch.no_grad():
            sampled = prior.sample(self.noise, self.component)  # [B, N, m]
            spread = prior.low + self.uniform * (prior.high - prior.low)  # [B, M, m]
            return torch.cat([sampled, spread], dim=1)


def info_nce(scores: Tensor) -> Tensor:
    """InfoNCE (Section 2.3) from scores [B, 1 + N] whose first column is the positive.

    Differs from the paper: its equation for L0 sums over the negatives alone. Like InfoNCE itself we count the
    positive among the candidates, because without it the ratio has no lower bound.
    """
    return -scores.log_softmax(-1)[:, 0].mean()


def bayesian_loss(
    model: BayesianModel,
    batch: Batch,
    negatives: Negatives,
    objective: str = "authors",
    return_weight: float = 1.0,
) -> dict[str, Tensor]:
    """L0 + lambda L1, plus the value model's own likelihood; averaged over the batch. `loss` is the sum to minimise.

    Two objectives are fully supported, because the paper's text and its released code differ:

      paper    L0 = -log p(a|s) - log [ p(R|s,a) / sum_{a'} p(R|s,a') ],  negatives a' ~ p(a|s)
      authors  L0 = -log [ exp(-E(a|s,R)) / sum_{a'} exp(-E(a'|s,R)) ],   negatives half p(a|s), half uniform
    """
    states = model.standardise(batch.observations)
    labels = model.buckets.encode(batch.returns)  # [B]
    prior = model.prior(states)
    candidates = torch.cat([batch.actions.unsqueeze(1), negatives.actions(prior)], dim=1)  # [B, 1 + N, m]
    log_returns = model.returns.log_probs(model.returns.encode(states), candidates)  # [B, 1 + N, buckets]
    picked = labels[:, None, None].expand(-1, candidates.shape[1], 1)
    scores = log_returns.gather(-1, picked).squeeze(-1)  # log p(R_i | s_i, a'), [B, 1 + N]

    parts: dict[str, Tensor] = {}
    if objective == "authors":
        log_prior = prior.log_prob(candidates)  # [B, 1 + N]
        parts["contrast"] = info_nce(log_prior + scores)  # minus the energy of each candidate
        parts["prior_nll"] = -log_prior[:, 0].mean().detach()  # watched, not trained
        total = parts["contrast"]
    elif objective == "paper":
        parts["prior_nll"] = prior.nll(batch.actions)
        parts["contrast"] = info_nce(scores)
        total = parts["prior_nll"] + parts["contrast"]
    else:
        raise KitError(f"unknown objective '{objective}' (valid: {', '.join(OBJECTIVES)})")
    parts["return_nll"] = F.nll_loss(log_returns[:, 0], labels)  # L1 = -log p(R|s,a)
    parts["value_nll"] = F.nll_loss(model.value(states), labels)
    # The value model shares no weights with the rest, so adding its loss is the same as training it apart.
    return {"loss": total + return_weight * parts["return_nll"] + parts["value_nll"], **parts}


# -- policy ------------------------------------------------------------------------------------------------------


@dataclass
class BayesianPolicy(TargetPolicy):
    """Adaptive inference (Algorithm 1), or any other target rule."""

    model: BayesianModel = field(kw_only=True)
    optimizer: Optimizer = field(default_factory=CrossEntropy)
    source: str = "prior_samples"
    """Where p(R|s) comes from: see inference/threshold.py."""
    prior_samples: int = 64
    """Actions averaged for p(R|s), and the candidates of mode `sample`."""
    prior_weight: float = 1.0
    """alpha, the weight of -log p(a|s) in the energy."""

    @property
    def generator(self) -> torch.Generator | None:
        return self.chooser.generator

    @torch.no_grad()
    def act(self, observations: Tensor) -> Tensor:
        model, buckets = self.model, self.model.buckets
        states = model.standardise(observations)
        prior, encoded = model.prior(states), model.returns.encode(states)  # once per state
        problem = Problem(
            energy=lambda actions: model.energy(prior, encoded, actions, bucket, self.prior_weight),
            sample_prior=prior.sample,
            low=prior.low,
            high=prior.high,
        )
        noise = problem.normal(self.prior_samples, self.generator)
        uniform = problem.uniform(self.prior_samples, self.generator)
        distribution = return_distribution(model, states, prior, encoded, self.source, noise, uniform)
        bucket = self.target.bucket(distribution, buckets)  # [B]
        if self.chooser.mode == "best":
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
        """A draw from pi(a|s) proportional to exp(-E) = p(a|s)^alpha p(R >= theta|s,a).

        Candidates are samples of the prior; one of them is kept in proportion to its importance weight exp(-E) / p(a|s)
        = p(a|s)^(alpha - 1) p(R >= theta|s,a), which for alpha = 1 is the chance of reaching theta (Proposition 1).
        For another alpha it is a draw from pi only in the limit of many candidates: the further alpha is from 1, the
        fewer of them carry the weight. Candidates that were clipped to the box count with the density at its edge.
        """
        candidates = problem.start(self.prior_samples, self.generator)  # [B, N, m]
        energies = problem.energy(candidates)
        log_weights = -energies - prior.log_prob(candidates)
        cumulative = torch.softmax(log_weights, dim=1).cumsum(1)
        uniform = problem.uniform(1, self.generator) * cumulative[:, -1:]
        index = (cumulative < uniform).sum(1, keepdim=True).clamp(max=candidates.shape[1] - 1)  # [B, 1]
        chosen = candidates.gather(1, index.unsqueeze(-1).expand(-1, 1, candidates.shape[-1])).squeeze(1)
        return chosen, energies.gather(1, index).squeeze(1)


# -- method ------------------------------------------------------------------------------------------------------


class BrRcrl(Method):
    """BR-RCRL for continuous actions."""

    name = "br_rcrl"
    summary = "the paper's method for continuous actions: p(a|s) and p(R|s,a), adaptive targets (Sections 4.1, 4.2)"
    kinds = ("box",)
    Config = BrRcrlConfig
    Act = BrRcrlAct
    watched = "return_nll"
    config: BrRcrlConfig

    def build(self) -> dict[str, nn.Module]:
        config, facts = self.config, self.facts
        size, buckets = facts.observation_shape[0], config.make_buckets(facts)
        statistics = facts.standardisation or (torch.zeros(size), torch.ones(size))
        head = make_head(facts, **config.gaussian())
        assert isinstance(head, GaussianHead)
        model = BayesianModel(
            Standardiser(*statistics),
            ActionPrior(size, config.hidden, head),
            ReturnModel(size, head.action_size, buckets.count, config.hidden, config.fusion),
            DistributionNet(size, buckets.count, config.hidden),
            buckets,
        )
        return {"model": model}

    def loss(self, batch: Batch, generator: torch.Generator | None) -> dict[str, Tensor]:
        config = self.config
        negatives = Negatives.draw(batch.actions, config.negatives, config.share_of_uniform, generator)
        return bayesian_loss(self.model, batch, negatives, config.objective, config.return_weight)

    def policy(self, act: BrRcrlAct, generator: torch.Generator | None) -> Policy:
        chooser = Chooser(act.mode, generator=generator)
        if act.clone:
            return CloningPolicy(chooser=Chooser(), distribution=lambda s: self.model.prior(self.model.standardise(s)))
        sized = {} if act.samples is None else {"samples": act.samples}
        return BayesianPolicy(
            act.rule(self.facts),
            chooser,
            self.facts.reward_clip,
            model=self.model,
            optimizer=make_optimizer(act.optimizer, **sized),
            source=act.source_for(self.config.objective),
            prior_weight=act.prior_weight,
        )
