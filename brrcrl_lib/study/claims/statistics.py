"""Intervals and tests in which a training seed is the unit.

Episodes of one trained model share its weights, so they say how that model plays, not how the next training turns
out: every function here first reduces returns [seeds, episodes] to one mean per seed. Few seeds call for Student's t
(Welch's where the two sides have spreads of their own), whose coverage `tests/study/test_statistics.py` measures on
the variances of the recorded rows. How words follow from effects is in `decisions.py`.

The mean of a skewed distribution of *seeds* is another matter: if one training in five fails altogether, three seeds
often show no failure, and no method can put it into the interval (50% coverage with 3 seeds, 67% with 5, 89% with 10).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, product
from typing import Any, NamedTuple

import numpy as np
from scipy import optimize, special

from brrcrl_lib.study.claims.scores import Interval

ALPHA = 0.05
POWER = 0.8
EXACT_UP_TO = 100_000
"""Permutation tests enumerate up to so many arrangements (16 pairs, or 9 seeds on each side), and sample beyond."""


def seed_means(returns: Any) -> np.ndarray:
    """One mean per training seed, [seeds], from episode returns [seeds, episodes] or from such means themselves."""
    values = np.asarray(returns, dtype=np.float64)
    if values.ndim not in (1, 2) or values.size == 0:
        raise ValueError(f"returns must have shape [seeds] or [seeds, episodes]; got {values.shape}")
    if not np.isfinite(values).all():
        raise ValueError("returns hold values that are not finite; repeat those runs")
    return values if values.ndim == 1 else values.mean(axis=1)


class Estimate(NamedTuple):
    """A mean or a difference of means, its standard error and the degrees of freedom of that error, each [...]."""

    value: Any
    error: Any
    df: Any

    def half_width(self, confidence: float = 1 - ALPHA) -> Any:
        """How far Student's interval reaches to either side."""
        return special.stdtrit(self.df, (1 + confidence) / 2) * self.error

    def p_value(self) -> Any:
        """Two-sided, of the hypothesis that the true value is 0. Seeds that agree exactly leave no doubt: 0 or 1."""
        with np.errstate(divide="ignore", invalid="ignore"):
            p = 2 * special.stdtr(self.df, -np.abs(self.value) / self.error)
        return np.where(np.asarray(self.value) == 0, 1.0, p)


def student(values: np.ndarray) -> Estimate:
    """The mean over seeds of values [seeds, ...], at least two."""
    count = len(values)
    return Estimate(values.mean(axis=0), values.std(axis=0, ddof=1) / math.sqrt(count), count - 1)


def welch(ours: np.ndarray, theirs: np.ndarray) -> Estimate:
    """The difference of means of independent seeds [seeds, ...] and [other seeds, ...], each with its own spread."""
    a, b = student(ours), student(theirs)
    u, v = a.error**2, b.error**2
    with np.errstate(divide="ignore", invalid="ignore"):
        df = (u + v) ** 2 / (u**2 / a.df + v**2 / b.df)
    df = np.clip(np.nan_to_num(df, nan=a.df + b.df), min(a.df, b.df), a.df + b.df)
    return Estimate(a.value - b.value, np.sqrt(u + v), df)


def mean_interval(returns: Any, confidence: float = 1 - ALPHA) -> Interval | None:
    """Mean over training seeds with Student's interval; None with a single seed, which has no spread to show."""
    values = seed_means(returns)
    if len(values) < 2:
        return None
    found = student(values)
    value, half = float(found.value), float(found.half_width(confidence))
    return Interval(value, value - half, value + half)


@dataclass(frozen=True)
class Effect:
    """How much more one side earns than the other. With a single seed there is an estimate and nothing else."""

    estimate: float
    error: float | None  # standard error
    df: float | None
    p: float | None  # two-sided, before any correction
    n_ours: int
    n_theirs: int
    paired: bool

    def interval(self, confidence: float = 1 - ALPHA) -> Interval | None:
        if self.error is None:
            return None
        half = float(Estimate(self.estimate, self.error, self.df).half_width(confidence))
        return Interval(self.estimate, self.estimate - half, self.estimate + half)

    @property
    def low(self) -> float | None:
        found = self.interval()
        return found.low if found else None

    @property
    def high(self) -> float | None:
        found = self.interval()
        return found.high if found else None

    def visible(self, alpha: float = ALPHA, power: float = POWER) -> float | None:
        """The smallest true effect that so many seeds, with this spread, would call significant 4 times in 5."""
        if self.error is None or self.df is None:
            return None
        return detectable(self.df, alpha, power) * self.error

    @property
    def smallest_visible(self) -> float | None:
        return self.visible()


def difference(ours: Any, theirs: Any, *, paired: bool) -> Effect:
    """The effect of `ours` over `theirs`, each [seeds] or [seeds, episodes].

    `paired` where the n-th seed of both sides shares something: the same weights under two rules, or the same
    starts. Paired differences are tested with Student's t, independent sides with Welch's.
    """
    a, b = seed_means(ours), seed_means(theirs)
    counts = (len(a), len(b))
    if paired and len(a) != len(b):
        raise ValueError(f"paired sides need the same seeds; got {len(a)} and {len(b)}")
    if min(counts) < 2:
        return Effect(float(a.mean() - b.mean()), None, None, None, *counts, paired)
    found = student(a - b) if paired else welch(a, b)
    return Effect(float(found.value), float(found.error), float(found.df), float(found.p_value()), *counts, paired)


def pool(groups: Sequence[Sequence[Effect]]) -> Effect | None:
    """The mean of effects in groups: independent between groups, of unknown correlation within one.

    Within a group the standard error of the mean is at most the mean of the standard errors. Between groups errors
    add in squares, with Welch and Satterthwaite's degrees of freedom. None if an effect has a single seed.
    """
    flat = [effect for group in groups for effect in group]
    if not flat or any(effect.error is None or effect.df is None for effect in flat):
        return None
    value = float(np.mean([np.mean([effect.estimate for effect in group]) for group in groups]))
    errors = np.array([np.mean([effect.error for effect in group]) for group in groups]) / len(groups)
    df = np.array([min(effect.df for effect in group if effect.df is not None) for group in groups])
    total = float((errors**2).sum())
    freedom = total**2 / float((errors**4 / df).sum()) if total else float(df.sum())
    counts = (min(effect.n_ours for effect in flat), min(effect.n_theirs for effect in flat))
    p = float(Estimate(value, math.sqrt(total), freedom).p_value())
    return Effect(value, math.sqrt(total), freedom, p, *counts, all(effect.paired for effect in flat))


@lru_cache(maxsize=1024)
def detectable(df: float, alpha: float = ALPHA, power: float = POWER) -> float:
    """The effect d, in standard errors, that a two-sided t test at `alpha` finds with probability `power`.

    The estimate is d + Z standard errors, and the standard error is seen as S times its true value, S^2 ~ chi^2/df.
    So the power is P(|d + Z| > c S), c the critical value: normal tails, averaged over 2,000 quantiles of S.
    """
    critical = float(special.stdtrit(df, 1 - alpha / 2))
    shares = (np.arange(2000) + 0.5) / 2000
    reach = critical * np.sqrt(special.gammaincinv(df / 2, shares) * 2 / df)

    def excess(shift: float) -> float:
        return float((special.ndtr(shift - reach) + special.ndtr(-shift - reach)).mean()) - power

    top = 2.0
    while excess(top) < 0:
        top *= 2
    return float(optimize.brentq(excess, 0.0, top))


def permutation_p(
    ours: Any, theirs: Any, *, paired: bool, rng: np.random.Generator | None = None, repetitions: int = 10_000
) -> float:
    """Two-sided p value from all sign flips (paired) or all ways to label the seeds: no distribution is assumed.

    Few seeds cannot reach 5%: the smallest possible value is 2/2^n paired (six pairs are needed) and 2 / (2n choose n)
    unpaired (four on each side). Beyond `EXACT_UP_TO` arrangements `repetitions` of them are drawn from `rng`.
    """
    a, b = seed_means(ours), seed_means(theirs)
    if paired and len(a) != len(b):
        raise ValueError(f"paired sides need the same seeds; got {len(a)} and {len(b)}")
    total = 2 ** len(a) if paired else math.comb(len(a) + len(b), len(a))
    exact = total <= EXACT_UP_TO
    if not exact and rng is None:
        raise ValueError(f"{total:,} arrangements are too many to enumerate: give a random generator")
    if paired:
        signs = np.array(list(product((1, -1), repeat=len(a)))) if exact else _signs(rng, repetitions, len(a))
        values, observed = signs @ (a - b) / len(a), (a - b).mean()
    else:
        pool = np.concatenate([a, b])
        chosen = np.array(list(combinations(range(len(pool)), len(a)))) if exact else _labels(rng, repetitions, a, b)
        first = pool[chosen].sum(axis=1)
        values, observed = first / len(a) - (pool.sum() - first) / len(b), a.mean() - b.mean()
    rounding = 1e-9 * (np.abs(a).max() + np.abs(b).max())
    extreme = int((np.abs(values) >= abs(observed) - rounding).sum())
    return extreme / total if exact else (extreme + 1) / (repetitions + 1)


def _signs(rng: Any, repetitions: int, count: int) -> np.ndarray:
    return rng.choice((1, -1), size=(repetitions, count))


def _labels(rng: Any, repetitions: int, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Indices [repetitions, len(a)] of the seeds that go to the first side."""
    return rng.random((repetitions, len(a) + len(b))).argsort(axis=1)[:, : len(a)]


def holm(p_values: Sequence[float] | np.ndarray) -> np.ndarray:
    """Holm's adjusted p values [..., k] along the last axis: at most alpha of all families hold a false finding."""
    p = np.asarray(p_values, dtype=np.float64)
    order = p.argsort(axis=-1)
    steps = np.take_along_axis(p, order, -1) * np.arange(p.shape[-1], 0, -1)
    adjusted = np.empty_like(p)
    np.put_along_axis(adjusted, order, np.minimum(np.maximum.accumulate(steps, axis=-1), 1), -1)
    return adjusted


def probability_of_improvement(ours: Any, theirs: Any) -> float:
    """How often a run of ours beats one of theirs on the same task (a tie is half a win), averaged over tasks.

    Scores [seeds, tasks]; the numbers of seeds may differ (Agarwal et al., 2021).
    """
    a, b = _scores(ours), _scores(theirs)
    if a.shape[1] != b.shape[1]:
        raise ValueError(f"both sides need the same tasks; got {a.shape[1]} and {b.shape[1]}")
    gaps = a[:, None] - b[None]  # [our seeds, their seeds, tasks]
    return float(((gaps > 0) + 0.5 * (gaps == 0)).mean())


def performance_profile(scores: Any, thresholds: Any) -> np.ndarray:
    """The share of runs that score above each threshold, [thresholds], all tasks alike (Agarwal et al., 2021)."""
    return (_scores(scores).reshape(-1, 1) > np.asarray(thresholds, dtype=np.float64)).mean(axis=0)


def _scores(scores: Any) -> np.ndarray:
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim != 2 or values.size == 0 or not np.isfinite(values).all():
        raise ValueError(f"scores must be finite and have shape [seeds, tasks]; got {values.shape}")
    return values
