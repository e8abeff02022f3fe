"""Tests and intervals over seeds: against scipy, brute force, hand values, and simulations of the recorded spreads."""

from __future__ import annotations

import json
from itertools import permutations, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from brrcrl_lib.study.claims.statistics import (
    Effect,
    detectable,
    difference,
    holm,
    mean_interval,
    performance_profile,
    permutation_p,
    probability_of_improvement,
    seed_means,
    student,
    welch,
)
from brrcrl_lib.study.experiments.results import read_grid

RNG = np.random.default_rng(0)
SIDES = [(RNG.normal(3, 2, n), RNG.normal(1, 5, n)) for n in (2, 3, 5, 10)]
SEEDS = (3, 5, 10)
FALLS = 0.2

# -- oracles -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize("sides", SIDES, ids=lambda sides: f"n = {len(sides[0])}")
def test_effects_agree_with_scipy(sides: tuple[np.ndarray, np.ndarray], paired: bool) -> None:
    ours, theirs = sides
    effect = difference(ours, theirs, paired=paired)
    oracle = stats.ttest_rel(ours, theirs) if paired else stats.ttest_ind(ours, theirs, equal_var=False)
    interval = oracle.confidence_interval()
    assert effect.estimate == pytest.approx(ours.mean() - theirs.mean())
    assert effect.p == pytest.approx(oracle.pvalue)
    assert effect.df == pytest.approx(oracle.df)
    assert (effect.low, effect.high) == pytest.approx((interval.low, interval.high))
    assert (effect.n_ours, effect.n_theirs, effect.paired) == (len(ours), len(theirs), paired)


def test_unequal_numbers_of_seeds_agree_with_scipy() -> None:
    ours, theirs = RNG.normal(size=7), RNG.normal(2, 9, 3)
    effect, oracle = difference(ours, theirs, paired=False), stats.ttest_ind(ours, theirs, equal_var=False)
    assert (effect.p, effect.df) == pytest.approx((oracle.pvalue, oracle.df))
    with pytest.raises(ValueError, match="same seeds; got 7 and 3"):
        difference(ours, theirs, paired=True)


def test_the_interval_of_a_mean_agrees_with_scipy() -> None:
    values = SIDES[2][0]
    interval = mean_interval(values)
    assert interval is not None
    assert interval[1:] == pytest.approx(stats.ttest_1samp(values, 0).confidence_interval())


def test_episodes_are_no_units() -> None:
    """Ten times the same episode in every seed says no more than one."""
    means = np.array([1.0, 4.0, 9.0])
    repeated = np.repeat(means[:, None], 10, axis=1)
    assert seed_means(repeated) == pytest.approx(means)
    assert mean_interval(repeated) == mean_interval(means)
    assert difference(repeated, means - 1, paired=False) == difference(means, means - 1, paired=False)


def test_a_single_seed_gives_no_interval() -> None:
    assert mean_interval([[1.0, 2.0, 3.0]]) is None
    for ours, theirs, paired in (([2.0], [1.0], True), ([2.0], [1.0, 3.0], False), ([2.0, 4.0], [1.0], False)):
        effect = difference(ours, theirs, paired=paired)
        assert effect.estimate == np.mean(ours) - np.mean(theirs)
        assert [effect.p, effect.low, effect.high, effect.df, effect.smallest_visible] == [None] * 5


def test_seeds_that_agree_exactly() -> None:
    for paired in (True, False):
        same = difference([2.0, 2.0, 2.0], [2.0, 2.0, 2.0], paired=paired)
        assert (same.estimate, same.p, same.low, same.high) == (0, 1, 0, 0)
        apart = difference([3.0, 3.0, 3.0], [2.0, 2.0, 2.0], paired=paired)
        assert (apart.estimate, apart.p, apart.low, apart.high) == (1, 0, 1, 1)


@pytest.mark.parametrize("bad", [[], [[[1.0]]], [1.0, np.nan]])
def test_returns_that_are_none_are_refused(bad: Any) -> None:
    with pytest.raises(ValueError, match="returns"):
        mean_interval(bad)


returns = st.lists(st.integers(-5000, 5000).map(lambda n: n / 7), min_size=2, max_size=8)


@settings(max_examples=200, deadline=None)
@given(returns, returns)
def test_swapping_the_sides_mirrors_the_effect_exactly(a: list[float], b: list[float]) -> None:
    pairs = [(a, b, False), (a[: len(b)], b[: len(a)], True)]
    for ours, theirs, paired in pairs:
        there, back = difference(ours, theirs, paired=paired), difference(theirs, ours, paired=paired)
        assert there.estimate == -back.estimate
        assert (there.low, there.high) == (-back.high, -back.low)  # type: ignore[operator]
        assert (there.p, there.df, there.smallest_visible) == (back.p, back.df, back.smallest_visible)


# -- power -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seeds", SEEDS)
def test_the_smallest_visible_effect_is_seen_four_times_in_five(seeds: int) -> None:
    rng = np.random.default_rng(seeds)
    effect = detectable(seeds - 1) / np.sqrt(seeds)  # true standard errors of a spread of 1
    found = student(rng.normal(effect, 1, (seeds, 40_000)))
    assert ((found.p_value() <= 0.05) & (found.value > 0)).mean() == pytest.approx(0.8, abs=0.01)


@pytest.mark.parametrize("df", [1, 2, 4, 7.5, 18])
def test_detectable_effects_agree_with_the_noncentral_t(df: float) -> None:
    critical = stats.t.ppf(0.975, df)
    assert stats.nct.sf(critical, df, detectable(df)) == pytest.approx(0.8, abs=0.001)


def test_the_smallest_visible_effect_is_in_units_of_return() -> None:
    effect = Effect(10, error=2.0, df=4, p=0.01, n_ours=5, n_theirs=5, paired=True)
    assert effect.smallest_visible == pytest.approx(2 * detectable(4))
    assert effect.visible(0.05 / 3) > effect.smallest_visible  # type: ignore[operator]
    assert detectable(10_000) == pytest.approx(stats.norm.ppf(0.975) + stats.norm.ppf(0.8), abs=1e-3)


# -- permutations ------------------------------------------------------------------------------------------------


def test_label_permutations_by_brute_force() -> None:
    ours, theirs = np.array([3.0, 9.0, 4.0]), np.array([1.0, 2.0, 5.0, 4.0])
    pool, observed = np.concatenate([ours, theirs]), abs(ours.mean() - theirs.mean())
    every = [abs(np.mean(order[:3]) - np.mean(order[3:])) for order in permutations(pool)]
    assert permutation_p(ours, theirs, paired=False) == pytest.approx(np.mean(np.array(every) >= observed - 1e-9))


def test_sign_flips_by_brute_force() -> None:
    ours, theirs = np.array([3.0, 9.0, 4.0, 6.0, 2.0]), np.array([1.0, 2.0, 5.0, 4.0, 2.0])
    gaps = ours - theirs
    every = [abs(np.mean(gaps * signs)) for signs in product((1, -1), repeat=5)]
    expected = np.mean(np.array(every) >= abs(gaps.mean()) - 1e-9)
    assert permutation_p(ours, theirs, paired=True) == pytest.approx(expected)


def test_few_seeds_cannot_be_significant_by_permutation() -> None:
    far = np.array([1e6, 2e6, 3e6, 4e6, 5e6])
    assert permutation_p(far, -far, paired=True) == 2 / 2**5 > 0.05
    assert permutation_p(far[:3], -far[:3], paired=False) == 2 / 20 > 0.05
    assert permutation_p(far[:4], -far[:4], paired=False) == 2 / 70 < 0.05


@pytest.mark.parametrize("paired", [True, False])
def test_many_seeds_are_sampled(paired: bool) -> None:
    rng = np.random.default_rng(1)
    ours, theirs = rng.normal(0.5, 1, 20), rng.normal(0, 1, 20)
    with pytest.raises(ValueError, match="give a random generator"):
        permutation_p(ours, theirs, paired=paired)
    sampled = permutation_p(ours, theirs, paired=paired, rng=rng)
    oracle = difference(ours, theirs, paired=paired).p
    assert sampled == pytest.approx(oracle, abs=0.02)


# -- several comparisons -----------------------------------------------------------------------------------------


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.4]) == pytest.approx([0.8, 0.8])
    assert holm([0.9, 0.8]) == pytest.approx([1, 1])
    assert holm([[0.01, 0.04], [0.04, 0.01]]) == pytest.approx(np.array([[0.02, 0.04], [0.04, 0.02]]))


# -- simulations with the recorded variances ---------------------------------------------------------------------


def recorded_spreads() -> dict[str, np.ndarray]:
    """Per dataset, standard deviations [settings, 2] between seeds and between episodes of one seed."""
    spreads: dict[str, list[tuple[float, float]]] = {}
    for grid in ("targets", "delta_sweep"):
        keys = ["dataset", "method", "objective", "target", "quantile", "delta"]
        for key, rows in read_grid(grid).groupby(keys, dropna=False):
            values = np.array([json.loads(text) for text in rows["returns"]])
            if len(values) > 1:
                within = values.var(axis=1, ddof=1).mean()
                between = max(0.0, values.mean(axis=1).var(ddof=1) - within / values.shape[1])
                spreads.setdefault(key[0], []).append((between**0.5, within**0.5))
    return {dataset: np.array(pairs) for dataset, pairs in spreads.items()}


@pytest.fixture(scope="module")
def spreads() -> np.ndarray:
    return np.concatenate(list(recorded_spreads().values()))


def noise(kind: str, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Episode returns with mean 0 and variance 1."""
    if kind == "normal":
        return rng.normal(size=shape)
    if kind == "skewed":
        return rng.exponential(size=shape) - 1
    return ((rng.random(shape) > FALLS) - (1 - FALLS)) / np.sqrt(FALLS * (1 - FALLS))  # walks on or falls


def simulate(
    kind: str, spreads: np.ndarray, seeds: int, episodes: int, rng: np.random.Generator, repetitions: int = 250
) -> tuple[np.ndarray, np.ndarray]:
    """Seed effects and episode luck, each [seeds, settings, repetitions]; a seed's mean return is their sum."""
    shape = (len(spreads), repetitions)
    luck = noise(kind, rng, (seeds, episodes, *shape)).mean(axis=1)
    return rng.normal(size=(seeds, *shape)) * spreads[:, :1], luck * spreads[:, 1:]


def test_the_recorded_variances_are_those_of_a_hard_problem() -> None:
    found = recorded_spreads()
    assert len(found) >= 5 and sum(map(len, found.values())) > 100
    assert any((pairs[:, 0] > pairs[:, 1]).any() for pairs in found.values()), "seeds differ more than episodes"


@pytest.mark.parametrize("kind", ["normal", "skewed", "bimodal"])
@pytest.mark.parametrize("episodes", [10, 20])
@pytest.mark.parametrize("seeds", SEEDS)
def test_coverage_and_false_positives(kind: str, episodes: int, seeds: int, spreads: np.ndarray) -> None:
    """About 28,000 experiments: two binomial standard errors of a rate of 5% are 0.3%. Every true effect is 0.

    The rival's spread is another recorded one, so Welch's test meets unequal variances as it does in the grids; the
    paired rival plays with the same weights.
    """
    rng = np.random.default_rng([seeds, episodes, len(kind)])
    own, luck = simulate(kind, spreads, seeds, episodes, rng)
    ours = own + luck
    rival = sum(simulate(kind, rng.permutation(spreads), seeds, episodes, rng))
    paired_rival = own + simulate(kind, spreads, seeds, episodes, rng)[1]
    for estimate in (student(ours), welch(ours, rival), student(ours - paired_rival)):
        assert 0.93 <= (np.abs(estimate.value) <= estimate.half_width()).mean() <= 0.97
        assert (estimate.p_value() <= 0.05).mean() <= 0.06


def test_the_check_would_notice_a_percentile_bootstrap(spreads: np.ndarray) -> None:
    """What intervals over three seeds used to be: all 27 resamples, the middle 95% of their means."""
    values = sum(simulate("normal", spreads, 3, 10, np.random.default_rng(0), 20))
    means = np.stack([np.mean([values[i] for i in drawn], axis=0) for drawn in product(range(3), repeat=3)])
    low, high = np.quantile(means, [0.025, 0.975], axis=0)
    assert ((low <= 0) & (high >= 0)).mean() < 0.85


@pytest.mark.parametrize("seeds", SEEDS)
def test_welch_bears_any_ratio_of_spreads(seeds: int) -> None:
    rng = np.random.default_rng(seeds)
    ours, theirs = rng.normal(size=(2, seeds, 100_000))
    for ratio in (1, 3, 6, 8, 15, 50):
        assert 0.03 <= (welch(ours, ratio * theirs).p_value() <= 0.05).mean() <= 0.06


@pytest.mark.parametrize("baseline", ["shared", "own"])
@pytest.mark.parametrize("seeds", SEEDS)
def test_a_family_of_six_errs_in_one_family_of_twenty(seeds: int, baseline: str, spreads: np.ndarray) -> None:
    rng = np.random.default_rng([seeds, len(baseline)])

    def side() -> np.ndarray:
        return np.asarray(sum(simulate("bimodal", rng.permutation(spreads), seeds, 10, rng)))

    first = side()
    ours = [first if baseline == "shared" else side() for _ in range(6)]
    p = np.stack([welch(mine, side()).p_value() for mine in ours], axis=-1)
    assert (holm(p).min(axis=-1) <= 0.05).mean() <= 0.06
    assert (p.min(axis=-1) <= 0.05).mean() > 0.1, "without a correction there is something to correct"


def test_what_no_interval_over_three_seeds_can_do() -> None:
    """Where one training in five fails altogether, half of all triples show no failure: the interval misses."""
    rng = np.random.default_rng(0)
    trainings = noise("bimodal", rng, (3, 20_000)) + 0.1 * rng.normal(size=(3, 20_000))
    estimate = student(trainings)
    assert (np.abs(estimate.value) <= estimate.half_width()).mean() < 0.8
    rival = noise("bimodal", rng, (3, 20_000)) + 0.1 * rng.normal(size=(3, 20_000))
    assert (welch(trainings, rival).p_value() <= 0.05).mean() <= 0.06, "a difference of equal ones stays symmetric"


# -- whole tables of scores --------------------------------------------------------------------------------------


def test_probability_of_improvement_by_brute_force() -> None:
    rng = np.random.default_rng(0)
    ours, theirs = rng.integers(0, 4, (3, 2)), rng.integers(0, 4, (5, 2))
    wins = [
        [(1.0 if a > b else 0.5 if a == b else 0.0) for a in ours[:, task] for b in theirs[:, task]] for task in (0, 1)
    ]
    assert probability_of_improvement(ours, theirs) == pytest.approx(np.mean(wins))
    u = [stats.mannwhitneyu(ours[:, task], theirs[:, task]).statistic / 15 for task in (0, 1)]
    assert probability_of_improvement(ours, theirs) == pytest.approx(np.mean(u))
    assert probability_of_improvement(ours, theirs) + probability_of_improvement(theirs, ours) == pytest.approx(1)
    with pytest.raises(ValueError, match="same tasks; got 2 and 1"):
        probability_of_improvement(ours, theirs[:, :1])


def test_performance_profile_by_hand() -> None:
    scores = [[0.0, 50.0], [100.0, 50.0]]
    assert performance_profile(scores, [-1, 0, 49, 50, 100]) == pytest.approx([1, 0.75, 0.75, 0.25, 0])
    with pytest.raises(ValueError, match=r"\[seeds, tasks\]"):
        performance_profile([1.0, 2.0], [0])
