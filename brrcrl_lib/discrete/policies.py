"""Playing a discrete model: every rule of inference is exact, and a batch of states is decided at once."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from brrcrl_lib.base.devices import generator as make_generator
from brrcrl_lib.discrete.models import DiscreteCloning, DiscreteVanilla, JointReturnModel
from brrcrl_lib.discrete.train import DiscreteRun
from brrcrl_lib.inference.targets import Adaptive, Constant, Target, target_for
from brrcrl_lib.policies import MODES, Policy


@dataclass
class Chooser:
    """From p(a|...) to an action: the likeliest or a draw, and now and then (epsilon) any action at all.

    Each episode has its own random numbers, one row a step, so that what it does never depends on whether its
    neighbours have ended.
    """

    mode: str = "best"
    """`best`: the likeliest action. `sample`: a draw."""
    epsilon: float = 0.0
    """Share of decisions that are uniformly random. The paper takes 0.01."""
    generator: torch.Generator | None = None
    _episodes: int | None = field(default=None, init=False)
    _lanes: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64), init=False)

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"unknown mode '{self.mode}' (valid: {', '.join(MODES)})")
        if not 0 <= self.epsilon <= 1:
            raise ValueError(f"epsilon must lie in [0, 1]; got {self.epsilon}")

    def reset(self, episodes: int) -> None:
        self._episodes, self._lanes = episodes, torch.arange(episodes)

    def keep(self, active: Tensor) -> None:
        self._lanes = self._lanes[active]

    def choose(self, log_policy: Tensor) -> Tensor:
        """Actions [B], counted from 0, for log-probabilities [B, A]."""
        actions = log_policy.argmax(-1)
        if self.mode == "best" and self.epsilon == 0:
            return actions
        device, count = log_policy.device, log_policy.shape[-1]
        rows = len(log_policy) if self._episodes is None else self._episodes
        draws = torch.rand(rows, 3, device=device, generator=self.generator)
        if self._episodes is not None:
            draws = draws[self._lanes.to(device)]  # [B, 3]
        if self.mode == "sample":
            cumulative = log_policy.softmax(-1).cumsum(-1)  # [B, A]
            actions = (cumulative < draws[:, :1] * cumulative[:, -1:]).sum(-1).clamp(max=count - 1)
        anything = (draws[:, 1] * count).long().clamp(max=count - 1)
        return torch.where(draws[:, 2] < self.epsilon, anything, actions)


@dataclass
class JointPolicy:
    """BR-RCRL: theta_delta(s) from the table's p(R|s), then an action of p(a | s, R >= theta) (Algorithm 1, exactly).

    The released code takes the likeliest action and an epsilon of 0.001 to 0.01.
    """

    model: JointReturnModel
    target: Target = field(default_factory=Adaptive)
    chooser: Chooser = field(default_factory=Chooser)
    reward_clip: float | None = None
    """Clip observed rewards as the data's were, before they are taken off a target."""
    trace: dict[str, Tensor] = field(default_factory=dict, init=False)

    def reset(self, episodes: int) -> None:
        self.target.reset(episodes)
        self.chooser.reset(episodes)

    @torch.no_grad()
    def act(self, observations: Tensor) -> Tensor:
        """Actions [B] int64 for raw observations [B, ...]."""
        table, buckets = self.model(observations), self.model.buckets
        bucket = self.target.bucket(table.log_returns().exp(), buckets)  # [B]
        actions = self.chooser.choose(table.log_actions_reaching(bucket))
        grid = buckets.decode(torch.arange(buckets.count, device=bucket.device))
        self.trace = {
            "bucket": bucket,
            "target": buckets.lower_edges(bucket.device)[bucket],
            "predicted": table.log_returns_of(actions).exp() @ grid,
            "energy": table.energy(bucket).gather(1, actions.unsqueeze(-1)).squeeze(-1),
        }
        return actions

    def observe(self, rewards: Tensor) -> None:
        self.target.observe(_clipped(rewards, self.reward_clip))

    def keep(self, active: Tensor) -> None:
        self.target.keep(active)
        self.chooser.keep(active)


@dataclass
class DiscreteCloningPolicy:
    """Behaviour cloning: p(a|s), whatever the return; of a model of its own, or of the joint table."""

    model: DiscreteCloning | JointReturnModel
    chooser: Chooser = field(default_factory=Chooser)
    trace: dict[str, Tensor] = field(default_factory=dict, init=False)

    def reset(self, episodes: int) -> None:
        self.chooser.reset(episodes)

    @torch.no_grad()
    def act(self, observations: Tensor) -> Tensor:
        output = self.model(observations)
        log_policy = output if isinstance(output, Tensor) else output.log_actions()
        return self.chooser.choose(log_policy)

    def observe(self, rewards: Tensor) -> None: ...

    def keep(self, active: Tensor) -> None:
        self.chooser.keep(active)


@dataclass
class DiscreteVanillaPolicy:
    """Vanilla reward-conditioned RL: p(a|s,R), with R from any target rule.

    An adaptive target asks for the return that stands for the bucket of theta_delta(s): vanilla RCRL conditions on
    one return, not on a return or more.
    """

    model: DiscreteVanilla
    target: Target
    chooser: Chooser = field(default_factory=Chooser)
    reward_clip: float | None = None
    trace: dict[str, Tensor] = field(default_factory=dict, init=False)

    def reset(self, episodes: int) -> None:
        self.target.reset(episodes)
        self.chooser.reset(episodes)

    @torch.no_grad()
    def act(self, observations: Tensor) -> Tensor:
        features = self.model.encoder(observations)
        if isinstance(self.target, Constant):
            wanted = self.target.wanted.to(features.device, torch.float32)
        else:
            distribution = self.model.log_returns(features).exp()
            wanted = self.model.buckets.decode(self.target.bucket(distribution, self.model.buckets))
        self.trace = {"target": wanted}
        return self.chooser.choose(self.model.log_actions(features, wanted))

    def observe(self, rewards: Tensor) -> None:
        self.target.observe(_clipped(rewards, self.reward_clip))

    def keep(self, active: Tensor) -> None:
        self.target.keep(active)
        self.chooser.keep(active)


def _clipped(rewards: Tensor, limit: float | None) -> Tensor:
    return rewards if limit is None else rewards.clamp(-limit, limit)


@dataclass(frozen=True)
class DiscreteInference:
    """How a trained discrete model is made to act."""

    target: str = "adaptive"
    """adaptive (theta_delta), max (the data's largest return), dt_schedule (subtract what was earned) or fixed."""
    delta: float = 0.1
    """Share of outcomes that the adaptive target may hope for, in (0, 1)."""
    value: float | None = None
    """Return that fixed asks for, and that dt_schedule starts from; the data's largest if left out."""
    quantile: float | None = None
    """The same as a quantile of the training data's reward-to-go, in [0, 1]."""
    mode: str = "best"
    """best: the likeliest action of pi^delta. sample: a draw from it."""
    epsilon: float = 0.01
    """Share of decisions that are uniformly random, as in the paper's evaluation."""
    clone: bool = False
    """Ignore the returns and play p(a|s): behaviour cloning with the same weights."""


def make_discrete_policy(run: DiscreteRun, config: DiscreteInference, seed: int = 0) -> Policy:
    """The policy that `run`'s model plays under `config`."""
    model, about = run.model, run.about
    device = next(model.parameters()).device
    chooser = Chooser(config.mode, config.epsilon, make_generator(seed, device))
    target = target_for(about, config.target, delta=config.delta, value=config.value, quantile=config.quantile)
    if isinstance(model, DiscreteVanilla):
        return DiscreteVanillaPolicy(model, target, chooser, about["reward_clip"])
    if config.clone or not isinstance(model, JointReturnModel):
        return DiscreteCloningPolicy(model, chooser)
    return JointPolicy(model, target, chooser, about["reward_clip"])
