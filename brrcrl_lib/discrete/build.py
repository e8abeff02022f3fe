"""What is trained on discrete actions: the configuration, and the buckets and model that follow from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from brrcrl_lib.base.config import did_you_mean
from brrcrl_lib.discrete.data import DiscreteData
from brrcrl_lib.discrete.encoders import ENCODERS, make_encoder
from brrcrl_lib.discrete.losses import LEARNERS
from brrcrl_lib.discrete.models import DiscreteCloning, DiscreteModel, DiscreteVanilla, JointReturnModel
from brrcrl_lib.returns import SCHEMES, ReturnBuckets

METHODS = ("bayesian", "vanilla", "cloning")
BUCKET_RANGES = ("data", "paper")
NEXT_POLICIES = ("cloned", "own")

PAPER_RANGE = (0.0, 10.0)
"""V_min and V_max in the paper's table of hyperparameters for Atari, at discount 0.95 and rewards clipped to +-1."""
PONG_RANGE = (-1.25, 1.25)
"""Differs from the paper: its [0, 10] would put every rally that is lost into one bucket. Points in Pong come far
apart: if two are never closer than 35 decisions of four frames (an assumption, true in the short games we looked at),
then at discount 0.95 no return exceeds 1 / (1 - 0.95^35) = 1.2 either way. With 51 grid points the range has one at
zero, and steps of 0.05."""


@dataclass(frozen=True)
class DiscreteConfig:
    """What is trained on discrete actions, and how. Defaults are the `laptop` sizes."""

    method: str = "bayesian"
    """bayesian (BR-RCRL's joint table), vanilla (p(a|s,R) with the return as an input) or cloning (p(a|s))."""
    learner: str = "monte_carlo"
    """monte_carlo (the paper's text) or distributional_td (the released code): how the table learns returns."""
    steps: int = 4_000
    """Gradient steps. The paper takes 3,000,000."""
    batch_size: int = 128
    """Transitions per step. The paper takes 32."""
    return_weight: float = 20.0
    """lambda, the weight of the return's term. The released code takes 1 for Seaquest."""
    action_penalty: float | None = None
    """Weight of the action logits' mean square; None: 0.5 for distributional_td (the released code), 0 for
    monte_carlo, whose equation has no such term."""
    target_every: int = 20
    """Steps between updates of distributional_td's slow copy. The paper takes 8,000, in a run 750 times as long; what
    counts is that there are many more updates than steps until a reward is discounted away."""
    next_policy: str = "cloned"
    """Who acts in the next state of distributional_td: cloned (a second network, as in the released code) or own
    (the slow copy's p(a|s), which saves that network)."""
    learning_rate: float = 2.5e-4
    """Adam's learning rate."""
    encoder: str = "auto"
    """mlp, nature or light; auto takes mlp for vectors and light for frames."""
    standardise_frames: bool = True
    """Take the data's mean frame off every frame and divide by one standard deviation; else divide by 255. Differs
    from the paper: most of a screen never changes, and a network that must find a ball of four pixels beside a bright
    constant background learns p(R) first and p(R|s) much later (tests/test_discrete_train.py has it in miniature)."""
    hidden: tuple[int, ...] = (256, 256)
    """Hidden layers of the mlp encoder."""
    buckets: int = 51
    """|B|, the number of return buckets."""
    bucket_scheme: str = "equal_width"
    """equal_width or paper_grid. Differs from the paper: on its grid distributional_td spreads a return over the grid
    points on either side of it, while monte_carlo puts it to the lower one, so that the two mean different things by
    R >= theta. With bins and their centres they agree."""
    bucket_range: str = "data"
    """V_min and V_max from the data, or the paper's 0 and 10 (Pong: -1.25 and 1.25). Returns outside go to the ends."""
    value_range: tuple[float, float] | None = None
    """V_min and V_max by hand, instead of bucket_range."""
    seed: int = 0
    """Seeds the weights and the batches."""
    device: str = "auto"
    """auto, cpu, cuda, mps."""
    compile: bool = False
    """torch.compile the loss."""
    mixed_precision: bool = False
    """bfloat16 autocast."""
    log_every: int = 50
    """Steps averaged into one row of metrics.csv."""
    checkpoint_every: int = 500
    """Steps between checkpoints."""

    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "smoke": {"steps": 40, "batch_size": 32, "hidden": (32, 32), "target_every": 5, "log_every": 10,
                  "checkpoint_every": 20},
        "paper": {"steps": 3_000_000, "batch_size": 32, "target_every": 8_000, "encoder": "nature",
                  "standardise_frames": False, "bucket_scheme": "paper_grid", "bucket_range": "paper",
                  "log_every": 1_000, "checkpoint_every": 50_000},
    }  # fmt: skip

    def __post_init__(self) -> None:
        for value, valid, what in (
            (self.method, METHODS, "method"),
            (self.learner, tuple(LEARNERS), "learner"),
            (self.next_policy, NEXT_POLICIES, "next policy"),
            (self.encoder, ("auto", *ENCODERS), "encoder"),
            (self.bucket_scheme, tuple(SCHEMES), "bucket scheme"),
            (self.bucket_range, BUCKET_RANGES, "bucket range"),
        ):
            if value not in valid:
                raise ValueError(f"unknown {what} '{value}'{did_you_mean(value, valid)}")
        for name in ("steps", "batch_size", "target_every", "log_every", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1; got {getattr(self, name)}")
        for name in ("return_weight", "action_penalty"):
            if (getattr(self, name) or 0.0) < 0:
                raise ValueError(f"{name} must be 0 or more; got {getattr(self, name)}")
        if self.buckets < 2:
            raise ValueError(f"returns need at least 2 buckets to differ in; got {self.buckets}")

    @property
    def penalty(self) -> float:
        """The action penalty that applies."""
        if self.action_penalty is not None:
            return self.action_penalty
        return 0.5 if self.learner == "distributional_td" else 0.0

    @property
    def bootstraps(self) -> bool:
        return self.method == "bayesian" and self.learner == "distributional_td"


def paper_range(env_id: str | None) -> tuple[float, float]:
    """V_min and V_max of a game, such as `ALE/Pong-v5` or `PongNoFrameskip-v4`."""
    game = (env_id or "").split("/")[-1].lower()
    return PONG_RANGE if game.startswith("pong") else PAPER_RANGE


def make_discrete_buckets(config: DiscreteConfig, data: DiscreteData) -> ReturnBuckets:
    chosen = paper_range(data.env_id) if config.bucket_range == "paper" else None
    chosen = config.value_range or chosen
    if chosen is not None:
        return ReturnBuckets(*chosen, config.buckets, config.bucket_scheme)
    return ReturnBuckets.from_data(data.rtg, config.buckets, scheme=config.bucket_scheme)


def make_discrete_model(
    config: DiscreteConfig, observation_shape: Sequence[int], action_count: int, buckets: ReturnBuckets
) -> DiscreteModel:
    """An untrained model; its standardiser is the identity until statistics are loaded into it."""
    encoder = make_encoder(config.encoder, observation_shape, config.hidden)
    if config.method == "vanilla":
        return DiscreteVanilla(encoder, action_count, buckets)
    if config.method == "cloning":
        return DiscreteCloning(encoder, action_count)
    return JointReturnModel(encoder, action_count, buckets)
