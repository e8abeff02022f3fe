"""Effects and verdicts, against literal resampling and closed forms."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from brrcrl_lib.study.claims.verdicts import bootstrap_means, compare, episode_returns, judge, mean_interval


def rows(returns: list[list[float]], env: str = "Hopper-v5") -> pd.DataFrame:
    return pd.DataFrame(
        [{"train_seed": seed, "env": env, "returns": json.dumps(values)} for seed, values in enumerate(returns)]
    )


def test_bootstrap_draws_seeds_and_then_episodes() -> None:
    """The variance of the resampled mean has a closed form for both stages."""
    rng = np.random.default_rng(0)
    returns = rng.normal(size=(4, 10)) * 3 + np.array([[0.0], [5.0], [10.0], [-2.0]])
    between = returns.mean(1).var() / 4
    within = returns.var(1).mean() / (4 * 10)
    means = bootstrap_means(returns, np.random.default_rng(1), 200_000)
    assert means.mean() == pytest.approx(returns.mean(), abs=0.03)
    assert means.var() == pytest.approx(between + within, rel=0.02)


def test_bootstrap_equals_a_literal_loop_in_distribution() -> None:
    returns = np.array([[1.0, 2.0], [3.0, 8.0]])
    rng = np.random.default_rng(2)
    literal = []
    for _ in range(20_000):
        drawn = [returns[rng.integers(2)] for _ in range(2)]
        literal.append(np.mean([[row[rng.integers(2)] for _ in range(2)] for row in drawn]))
    fast = bootstrap_means(returns, np.random.default_rng(3), 20_000)
    for level in (0.05, 0.25, 0.5, 0.75, 0.95):
        assert np.quantile(fast, level) == pytest.approx(np.quantile(literal, level), abs=0.26)
    assert fast.mean() == pytest.approx(np.mean(literal), abs=0.05)


def test_effects_know_their_direction() -> None:
    low, high = rows([[1.0, 2.0, 3.0]] * 3), rows([[11.0, 12.0, 13.0]] * 3)
    effect = compare("hopper", high, low)
    assert effect.difference.estimate == pytest.approx(10) and effect.direction == 1
    assert compare("hopper", low, high).direction == -1
    assert compare("hopper", low, low).direction == 0
    assert effect.score_difference.estimate == pytest.approx(100 * 10 / (3234.3 + 20.272305))
    interval = mean_interval(low)
    assert interval.estimate == pytest.approx(2) and interval.low < 2 < interval.high


def test_a_verdict_needs_every_dataset_to_hold() -> None:
    low, high = rows([[1.0, 2.0]] * 3), rows([[11.0, 12.0]] * 3)
    good, bad, none = (high, low), (low, high), (low, low)
    assert judge("c", {"a": good, "b": good}).word == "holds"
    assert judge("c", {"a": good, "b": none}).word == "holds partly"
    assert judge("c", {"a": good, "b": bad}).word == "holds partly"
    assert judge("c", {"a": none, "b": bad}).word == "does not hold here"
    text = str(judge("more is more", {"a": good, "b": none, "c": bad}))
    assert text.startswith("more is more: holds partly. a +10")
    assert "not told apart" in text and "the other way round" in text


def test_rows_that_cannot_be_judged_are_refused() -> None:
    with pytest.raises(ValueError, match="has not recorded"):
        episode_returns(rows([]))
    twice = pd.concat([rows([[1.0]]), rows([[2.0]])])
    with pytest.raises(ValueError, match="several rows for the training seed 0"):
        episode_returns(twice)
