"""What is trained: the configuration, and the model, buckets and data split that follow from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from brrcrl_lib.base.config import did_you_mean
from brrcrl_lib.base.devices import generator as make_generator
from brrcrl_lib.data.vectors import OfflineDataset
from brrcrl_lib.losses import OBJECTIVES, Batch, Negatives, bayesian_loss, cloning_loss, vanilla_loss
from brrcrl_lib.models import (
    FUSIONS,
    ActionPrior,
    BayesianModel,
    CloningModel,
    ReturnModel,
    RewardConditionedPolicy,
    Standardiser,
    ValueModel,
)
from brrcrl_lib.returns import PAPER_HIGH, ReturnBuckets

METHODS = ("bayesian", "vanilla", "cloning")
BUCKET_RANGES = ("data", "authors", "paper")
Model = BayesianModel | RewardConditionedPolicy | CloningModel


@dataclass(frozen=True)
class TrainConfig:
    """What is trained, and how. Defaults are the `laptop` sizes."""

    method: str = "bayesian"
    """bayesian (BR-RCRL), vanilla (p(a|s,R) with the return as an input) or cloning (p(a|s))."""
    objective: str = "authors"
    """paper (likelihood of the prior plus InfoNCE on p(R|s,a)) or authors (InfoNCE on the whole energy)."""
    steps: int = 6_000
    """Gradient steps. The paper takes 70,000."""
    batch_size: int = 256
    """Transitions per step. The paper takes 512."""
    negatives: int = 16
    """Negative actions per transition, N_A'. The paper takes 256."""
    uniform_share: float | None = None
    """Share of negatives drawn uniformly from the action box; None: 0.5 for authors, 0 for paper."""
    return_weight: float = 1.0
    """lambda, the weight of L1. Zero switches L1 off."""
    learning_rate: float = 5e-4
    """Adam's learning rate."""
    hidden: tuple[int, ...] = (256, 256, 256)
    """Hidden layers of every network."""
    fusion: str = "late"
    """late (a light head per action: faster to train, `make bench` says how much) or early (state and action meet in
    the first layer, as in the released code)."""
    components: int = 1
    """Gaussians in the prior's mixture."""
    squash: bool = False
    """Tanh-squash the prior into the action box."""
    log_std_range: tuple[float, float] = (-4.0, 15.0)
    """Bounds of the prior's log standard deviation (the released code's)."""
    buckets: int = 80
    """|B|, the number of return buckets."""
    bucket_scheme: str = "equal_width"
    """equal_width (the released code) or paper_grid (the paper's formula)."""
    bucket_range: str = "data"
    """V_max from the data, from the authors' table, or the paper's 1,200. Returns above it go to the last bucket."""
    top_share: float | None = None
    """Train on this share of the episodes, the best by return; None: on all of them."""
    held_out: float = 0.05
    """Share of episodes kept out of training, to see what was learned; the same ones for every seed."""
    seed: int = 0
    """Seeds the weights, the batches and the negatives."""
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
        "smoke": {"steps": 40, "batch_size": 64, "negatives": 8, "hidden": (32, 32), "log_every": 10,
                  "checkpoint_every": 20},
        "paper": {"steps": 70_000, "batch_size": 512, "negatives": 256, "fusion": "early",
                  "held_out": 0.0, "checkpoint_every": 5_000},
    }  # fmt: skip

    def __post_init__(self) -> None:
        for value, valid, what in (
            (self.method, METHODS, "method"),
            (self.objective, OBJECTIVES, "objective"),
            (self.fusion, FUSIONS, "fusion"),
            (self.bucket_range, BUCKET_RANGES, "bucket range"),
        ):
            if value not in valid:
                raise ValueError(f"unknown {what} '{value}'{did_you_mean(value, valid)}")
        for name in ("steps", "batch_size", "negatives", "log_every", "checkpoint_every", "buckets", "components"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1; got {getattr(self, name)}")
        if not 0 <= self.held_out < 1:
            raise ValueError(f"held_out must lie in [0, 1); got {self.held_out}")
        if self.uniform_share is not None and not 0 <= self.uniform_share <= 1:
            raise ValueError(f"uniform_share must lie in [0, 1]; got {self.uniform_share}")
        if self.top_share is not None and not 0 < self.top_share <= 1:
            raise ValueError(f"top_share must lie in (0, 1]; got {self.top_share}")
        if len(self.hidden) < 2:
            raise ValueError(f"hidden needs at least two layers; got {self.hidden}")

    @property
    def share_of_uniform(self) -> float:
        return self.uniform_share if self.uniform_share is not None else (0.5 if self.objective == "authors" else 0.0)


def split(config: TrainConfig, dataset: OfflineDataset) -> tuple[OfflineDataset, OfflineDataset]:
    """(training episodes, held-out episodes), both from the best `top_share`; with nothing held out, the same twice."""
    if config.top_share is not None:
        dataset = dataset.top_fraction(config.top_share)
    return dataset.split(config.held_out, make_generator(0)) if config.held_out else (dataset, dataset)


# -- building ----------------------------------------------------------------------------------------------------


def make_buckets(config: TrainConfig, dataset: OfflineDataset) -> ReturnBuckets:
    if config.bucket_range == "authors":
        return ReturnBuckets.from_authors(dataset.id, config.buckets, config.bucket_scheme)
    high = PAPER_HIGH if config.bucket_range == "paper" else None
    low = 0.0 if config.bucket_range == "paper" else None
    return ReturnBuckets.from_data(dataset.rtg, config.buckets, low=low, high=high, scheme=config.bucket_scheme)


def make_model(config: TrainConfig, observation_size: int, low: Tensor, high: Tensor, buckets: ReturnBuckets) -> Model:
    """An untrained model; its standardiser is the identity until statistics are loaded into it."""
    standardiser = Standardiser(torch.zeros(observation_size), torch.ones(observation_size))

    def prior(condition_size: int = 0) -> ActionPrior:
        return ActionPrior(
            observation_size, low, high, config.hidden, config.components, config.squash, config.log_std_range,
            condition_size,
        )  # fmt: skip

    if config.method == "vanilla":
        value = ValueModel(observation_size, buckets.count, config.hidden)
        return RewardConditionedPolicy(standardiser, prior(condition_size=1), value, buckets)
    if config.method == "cloning":
        return CloningModel(standardiser, prior())
    return BayesianModel(
        standardiser,
        prior(),
        ReturnModel(observation_size, len(low), buckets.count, config.hidden, config.fusion),
        ValueModel(observation_size, buckets.count, config.hidden),
        buckets,
    )


def compute_loss(
    config: TrainConfig, model: Model, batch: Batch, generator: torch.Generator | None
) -> dict[str, Tensor]:
    """The loss of one batch, and the parts it is made of. Free of host synchronisation."""
    if isinstance(model, BayesianModel):
        negatives = Negatives.draw(batch.actions, config.negatives, config.share_of_uniform, generator)
        return bayesian_loss(model, batch, negatives, config.objective, config.return_weight)
    if isinstance(model, RewardConditionedPolicy):
        return vanilla_loss(model, batch)
    return cloning_loss(model, batch)
