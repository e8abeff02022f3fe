"""Settings that methods share; each method's Config picks the groups that it needs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from brrcrl_lib.base.config import at_least, in_range, one_of
from brrcrl_lib.base.errors import KitError
from brrcrl_lib.data.batch import Facts
from brrcrl_lib.inference.targets import TargetSettings
from brrcrl_lib.nets import ENCODERS, Encoder, VectorEncoder, make_encoder
from brrcrl_lib.policies import MODES
from brrcrl_lib.returns import SCHEMES, ReturnBuckets
from brrcrl_lib.worlds import world_of


@dataclass(frozen=True)
class MethodConfig:
    """What every training has. Defaults are the `laptop` sizes for vectors."""

    steps: int = 6_000
    """Gradient steps."""
    batch_size: int = 256
    """Transitions per step."""
    learning_rate: float = 5e-4
    """Adam's learning rate."""
    discount: float | None = None
    """gamma of the reward-to-go; None: the paper's, 0.99 for a box of actions and 0.95 for a discrete set."""
    reward_clip: float | None = None
    """Clip rewards to [-c, c] before they are added up; None: games at 1 and nothing else; 0: never."""
    top_share: float | None = None
    """Train on this share of the episodes, the best by return; None: on all of them."""
    held_out: float = 0.05
    """Share of episodes kept out of training, to see what was learned; the same ones for every seed."""
    weight_decay: float | None = None
    """lambda of AdamW, for every weight w: w <- (1 - learning_rate lambda) w, then Adam's step; None: Adam alone."""
    ema: float | None = None
    """Play the average w' of the weights instead of the last ones: w' <- w' + max(1 - ema, 1 / t) (w - w') after step t
    = 1, 2, ..., so the plain mean of all steps at first and an exponential average of the last 1 / (1 - ema) later,
    without a memory of the first random weights; None: no average."""
    patience: int | None = None
    """Watch the method's loss (return_nll for br_rcrl) on fixed batches of held-out episodes every checkpoint_every
    steps, play the weights that were best in it, and stop after so many checks without a better one; None: train to
    the end and play the last weights."""
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

    presets: ClassVar[dict[str, dict[str, Any]]] = {}

    def __post_init__(self) -> None:
        at_least(self, 1, "steps", "batch_size", "log_every", "checkpoint_every")
        in_range(self, "learning_rate", 0, math.inf, open_low=True)
        in_range(self, "discount", 0, 1)
        in_range(self, "reward_clip", 0, math.inf)
        in_range(self, "top_share", 0, 1, open_low=True)
        in_range(self, "held_out", 0, 0.9)
        in_range(self, "seed", 0, 2**63 - 1)
        in_range(self, "weight_decay", 0, math.inf)
        in_range(self, "ema", 0, 1, open_high=True)
        at_least(self, 1, "patience")
        if self.patience is not None and not self.held_out:
            raise KitError("patience watches held-out episodes, and there are none; set held_out above 0")


FRAMES = {"steps": 4_000, "batch_size": 128, "learning_rate": 2.5e-4, "held_out": 0.0}
"""Sizes for a discrete set of actions, vectors or frames."""
SMOKE = {"steps": 40, "log_every": 10, "checkpoint_every": 20}
PAPER_BOX = {"steps": 70_000, "batch_size": 512, "held_out": 0.0, "checkpoint_every": 5_000}
RELEASED_BOX = {"steps": 12_000, "batch_size": 512, "held_out": 0.0}
"""The released code's batches; 40 passes over the 150,000 transitions of the kit's medium-replay data."""
PAPER_GAMES = {"steps": 3_000_000, "batch_size": 32, "log_every": 1_000, "checkpoint_every": 50_000}


@dataclass(frozen=True)
class EncoderSettings(MethodConfig):
    """How observations are read."""

    encoder: str = "auto"
    """mlp, nature, light or none; auto takes what fits the observations."""
    standardise_frames: bool = True
    """Take the data's mean frame off every frame and divide by one standard deviation; else divide by 255. Differs
    from the paper: most of a screen never changes, and a network that must find a ball of four pixels beside a bright
    constant background learns p(R) first and p(R|s) much later (tests/data/test_sources.py has it small)."""
    hidden: tuple[int, ...] = (256, 256, 256)
    """Hidden layers, for vectors."""

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self, "encoder", ("auto", *ENCODERS))
        if any(width < 1 for width in self.hidden):
            raise KitError(f"hidden layers need at least one unit each; got {self.hidden}")

    def make_encoder(self, facts: Facts, kind: str | None = None) -> Encoder:
        """An encoder for these data, which standardises as they ask for."""
        encoder = make_encoder(kind or self.encoder, facts.observation_shape, self.hidden)
        if facts.standardisation is not None and (isinstance(encoder, VectorEncoder) or self.standardise_frames):
            mean, std = facts.standardisation
            encoder.standardise.load_state_dict({"mean": mean, "std": std})
        return encoder


@dataclass(frozen=True)
class GaussianSettings(MethodConfig):
    """The distribution over a box of actions."""

    components: int = 1
    """Gaussians in the mixture."""
    squash: bool = False
    """Tanh-squash the actions into their box."""
    log_std_range: tuple[float, float] = (-4.0, 15.0)
    """Bounds of the log standard deviation (the released code's)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "components")
        if not self.log_std_range[0] < self.log_std_range[1]:
            raise KitError(f"log_std_range must rise; got {self.log_std_range}")

    def gaussian(self) -> dict[str, Any]:
        return {"components": self.components, "squash": self.squash, "log_std_range": self.log_std_range}


BUCKET_RANGES = ("data", "authors", "paper")


@dataclass(frozen=True)
class BucketSettings(MethodConfig):
    """How returns are counted: the buckets B of Section 4.3."""

    buckets: int = 80
    """|B|, the number of return buckets."""
    bucket_scheme: str = "equal_width"
    """equal_width (the released code) or paper_grid (the paper's formula)."""
    bucket_range: str = "data"
    """V_min and V_max from the data, from the released code's table (authors), or the paper's. Returns outside go to
    the end buckets."""
    value_range: tuple[float, float] | None = None
    """V_min and V_max by hand, instead of bucket_range."""

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self, "bucket_scheme", SCHEMES)
        one_of(self, "bucket_range", BUCKET_RANGES)
        if self.buckets < 2:
            raise KitError(f"returns need at least 2 buckets to differ in; got {self.buckets}")

    def make_buckets(self, facts: Facts) -> ReturnBuckets:
        if self.value_range is not None:
            return ReturnBuckets(*self.value_range, self.buckets, self.bucket_scheme)
        if self.bucket_range == "authors":
            return ReturnBuckets.from_authors(facts.dataset, self.buckets, self.bucket_scheme)
        low, high = self._paper_range(facts) if self.bucket_range == "paper" else (None, None)
        return ReturnBuckets.from_data(facts.return_range, self.buckets, low=low, high=high, scheme=self.bucket_scheme)

    def _paper_range(self, facts: Facts) -> tuple[float, float]:
        """V_min and V_max of the paper, for the world of these data."""
        found = world_of(facts.env or facts.dataset, "box" if facts.kind == "box" else "pixels").paper_range
        assert found is not None
        return found


@dataclass(frozen=True)
class BayesianAct(TargetSettings):
    """How p(a|s) and p(R|s,a) are made to act: by pi(a|s) proportional to p(a|s)^alpha p(R >= theta|s,a)."""

    prior_weight: float = 1.0
    """alpha of E(a|s) = -alpha log p(a|s) - log p(R >= theta|s,a): below 1 the action may leave the prior further than
    the paper's energy allows, above 1 less far. theta_delta(s) is the data's own at any alpha."""
    mode: str = "best"
    """best: the likeliest action of that policy, which has the lowest energy. sample: a draw from it."""
    clone: bool = False
    """Ignore the returns and play p(a|s): behaviour cloning with the same weights."""

    def __post_init__(self) -> None:
        super().__post_init__()
        in_range(self, "prior_weight", 0, math.inf)
        one_of(self, "mode", MODES)
