"""From rows of results to words: effects with bootstrap intervals, and the verdict that follows from them.

An effect is a difference of mean returns between two ways of acting, on one dataset. Its interval comes from a
bootstrap that draws training seeds anew and, within each seed, episodes: both sources of luck are in it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from brrcrl_lib.study.claims.scores import Interval, has_score, normalised_std
from brrcrl_lib.worlds import world_of

REPETITIONS = 4000


def episode_returns(rows: pd.DataFrame) -> np.ndarray:
    """Returns [seeds, episodes] of the rows of one setting, one row per training seed."""
    if rows.empty:
        raise ValueError("no rows to judge: the grid has not recorded this setting yet")
    if rows["train_seed"].duplicated().any():
        raise ValueError(f"several rows for the training seed {rows['train_seed'].mode()[0]}: select one setting")
    return np.array([json.loads(text) for text in rows.sort_values("train_seed")["returns"]], dtype=np.float64)


def bootstrap_means(returns: np.ndarray, rng: np.random.Generator, repetitions: int = REPETITIONS) -> np.ndarray:
    """Means [repetitions] of resampled returns [seeds, episodes]: seeds drawn anew, then episodes within each."""
    seeds, episodes = returns.shape
    drawn_seeds = rng.integers(seeds, size=(repetitions, seeds, 1))
    drawn_episodes = rng.integers(episodes, size=(repetitions, seeds, episodes))
    return returns[drawn_seeds, drawn_episodes].mean(axis=(1, 2))


def mean_interval(rows: pd.DataFrame, seed: int = 0) -> Interval:
    """Mean return of one setting with its 95% interval."""
    returns = episode_returns(rows)
    low, high = np.quantile(bootstrap_means(returns, np.random.default_rng(seed)), [0.025, 0.975])
    return Interval(float(returns.mean()), float(low), float(high))


@dataclass(frozen=True)
class Effect:
    """How much more one setting earns than another on one dataset, in raw return."""

    where: str
    ours: float
    theirs: float
    difference: Interval
    env: str

    @property
    def direction(self) -> int:
        """1 or -1 where the whole interval lies on one side of zero, else 0."""
        return int(self.difference.low > 0) - int(self.difference.high < 0)

    @property
    def score_difference(self) -> Interval:
        """The same in points of normalised score; not a number where the environment has no reference score."""
        if not has_score(self.env):
            return Interval(np.nan, np.nan, np.nan)
        return Interval(*(float(normalised_std(self.env, value)) for value in self.difference))

    def __str__(self) -> str:
        estimate, low, high = (f"{value:+,.{world_of(self.env).decimals}f}" for value in self.difference)
        return f"{self.where} {estimate} [{low}, {high}]"


def compare(where: str, ours: pd.DataFrame, theirs: pd.DataFrame, seed: int = 0) -> Effect:
    """The effect of `ours` over `theirs`: rows of one dataset and one setting each."""
    a, b = episode_returns(ours), episode_returns(theirs)
    rng = np.random.default_rng(seed)
    differences = bootstrap_means(a, rng) - bootstrap_means(b, rng)
    low, high = np.quantile(differences, [0.025, 0.975])
    difference = Interval(float(a.mean() - b.mean()), float(low), float(high))
    return Effect(where, float(a.mean()), float(b.mean()), difference, str(ours["env"].iloc[0]))


WORDS = ("holds", "holds partly", "does not hold here")


@dataclass(frozen=True)
class Verdict:
    """What the rows say about a claim."""

    claim: str
    effects: tuple[Effect, ...]

    @property
    def word(self) -> str:
        """holds: the effect is there on every dataset; partly: on some; does not hold here: on none."""
        directions = [effect.direction for effect in self.effects]
        return WORDS[0] if min(directions) > 0 else (WORDS[1] if max(directions) > 0 else WORDS[2])

    def __str__(self) -> str:
        clear = {1: "", 0: " (not told apart)", -1: " (the other way round)"}
        parts = "; ".join(f"{effect}{clear[effect.direction]}" for effect in self.effects)
        return f"{self.claim}: {self.word}. {parts}."


def judge(claim: str, pairs: Mapping[str, tuple[pd.DataFrame, pd.DataFrame]]) -> Verdict:
    """The verdict on a claim that the first of each pair of settings earns more than the second, for each dataset."""
    return Verdict(claim, tuple(compare(where, ours, theirs) for where, (ours, theirs) in pairs.items()))
