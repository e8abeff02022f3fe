"""Notebook 13's numbers, on made rows: the aggregates against their definitions, written out literally."""

from __future__ import annotations

import json
from itertools import product

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from brrcrl_lib.study.analysis.online_choice import KNOBS, arms_of, choice_curves, ucb_curve
from brrcrl_lib.study.claims import benchmark
from brrcrl_lib.study.claims.paper_tables import TABLE_1
from brrcrl_lib.study.claims.scores import iqm, normalised_score
from brrcrl_lib.study.figures import benchmark as figures

HOPPER, WALKER = "brrcrl/hopper/medium-replay-v1", "brrcrl/walker2d/medium-replay-v1"
ENVS = {HOPPER: "Hopper-v5", WALKER: "Walker2d-v5"}


def row(dataset: str, seed: int, mean: float, **settings) -> dict:
    returns = [mean - 100, mean, mean + 100]
    return {
        "dataset": dataset, "env": ENVS[dataset], "train_seed": seed, "return_mean": mean,
        "returns": json.dumps(returns),
        "score": float(normalised_score(ENVS[dataset], mean)), "train_steps": 1000, "train_seconds": 90.0,
        "seconds": 6.0, "episodes": 3, "length_mean": 500.0, "objective": None, "target": None, **settings,
    }  # fmt: skip


@pytest.fixture
def rows() -> pd.DataFrame:
    """Ours better than IQL on Hopper and worse on Walker2d, BC the worst; vanilla best by Max; CQL on Hopper alone."""
    rng, made = np.random.default_rng(0), []
    adaptive = {"target": "adaptive", "delta": 0.1}
    for dataset, seed in product(ENVS, range(3)):
        high, low = (2000, 1500) if dataset == HOPPER else (1500, 2000)
        noise = rng.normal(0, 30, 8)
        made += [
            row(dataset, seed, high + noise[0], method="br_rcrl", objective="authors", **adaptive),
            row(
                dataset,
                seed,
                high + 300 + noise[1],
                method="br_rcrl",
                objective="authors",
                target="adaptive",
                delta=0.01,
            ),
            row(dataset, seed, low + noise[2], method="iql"),
            row(dataset, seed, 300 + noise[3], method="cloning"),
            row(dataset, seed, 900 + noise[4], method="cloning", top_share=0.1),
            row(dataset, seed, 700 + noise[5], method="vanilla", target="max"),
            row(dataset, seed, 600 + noise[6], method="vanilla", **adaptive),
        ]
        if dataset == HOPPER:
            made.append(row(dataset, seed, 1000 + noise[7], method="cql"))
    return pd.DataFrame(made)


def scores_of(rows: pd.DataFrame, dataset: str, **wanted) -> list[float]:
    chosen = rows[rows["dataset"] == dataset]
    for name, value in wanted.items():
        chosen = chosen[chosen[name] == value]
    return [float(normalised_score(ENVS[dataset], mean)) for mean in chosen["return_mean"]]


def test_lines_name_each_method_once_per_seed_and_vanilla_by_its_best_rule(rows) -> None:
    assert benchmark.best_rule(rows) == "max" and benchmark.best_rule(rows.iloc[:0]) is None
    found = benchmark.lines(rows)
    counts = found.groupby("method").size().to_dict()
    assert counts == {benchmark.RELEASED: 6, "IQL": 6, "BC": 6, "10% BC": 6, benchmark.VANILLA: 6, "CQL": 3}
    vanilla = found[(found["method"] == benchmark.VANILLA) & (found["id"] == HOPPER)]["score"]
    assert vanilla.tolist() == scores_of(rows, HOPPER, method="vanilla", target="max")
    first = found.iloc[0]
    assert first["core-minutes"] == 1.5 and first["ms per action"] == pytest.approx(1000 * 6 / 1500)
    assert list(benchmark.lines(rows.iloc[:0])) == list(found)


def test_the_table_says_how_many_seeds_and_what_is_missing(rows) -> None:
    table = benchmark.table(benchmark.lines(rows))
    assert list(table) == ["hopper medium-replay", "walker2d medium-replay"]
    assert table.loc["CQL"].tolist()[1] == "-" and table.loc["CQL"].tolist()[0].endswith("(3)")
    assert all(float(mean) > 0 for mean in table.loc["policy that made the data"])
    away = rows.assign(dataset=rows["dataset"].str.replace("brrcrl/", "elsewhere/"))
    assert set(benchmark.table(benchmark.lines(away)).loc["policy that made the data"]) == {"-"}  # not installed
    one = benchmark.table(benchmark.lines(rows[rows["train_seed"] == 0]))
    assert one.loc["IQL", "hopper medium-replay"] == f"{scores_of(rows, HOPPER, method='iql')[0]:.1f} (1)"


def test_aggregates_are_over_datasets_that_every_method_has(rows) -> None:
    found = benchmark.lines(rows)
    assert benchmark.common(found) == ["hopper medium-replay"]
    whole = found[found["method"] != "CQL"]
    table = benchmark.aggregate(whole)
    ours = scores_of(rows, HOPPER, method="iql") + scores_of(rows, WALKER, method="iql")
    assert table.loc["IQL", "IQM"] == pytest.approx(np.mean(sorted(ours)[1:-1])) == iqm(np.array([ours]))
    assert (table["low"] <= table["IQM"]).all() and (table["IQM"] <= table["high"]).all()
    assert table["IQM"].is_monotonic_decreasing and set(table["seeds"]) == {3} and set(table["datasets"]) == {2}
    assert benchmark.aggregate(found.iloc[:0]).empty


def test_profiles_and_improvement_are_their_definitions(rows) -> None:
    found = benchmark.lines(rows)
    whole = found[found["method"] != "CQL"]
    profile = benchmark.profiles(whole, [10.0, 30.0, 60.0])
    every = scores_of(rows, HOPPER, method="iql") + scores_of(rows, WALKER, method="iql")
    for threshold in (10.0, 30.0, 60.0):
        assert profile.loc[threshold, "IQL"] == sum(score > threshold for score in every) / len(every)
    table = benchmark.improvement(found)
    wins = []
    for dataset in ENVS:
        ours = scores_of(rows[rows["delta"] == 0.1], dataset, method="br_rcrl")
        wins.append(np.mean([a > b for a, b in product(ours, scores_of(rows, dataset, method="iql"))]))
    assert table.loc["IQL", "P"] == np.mean(wins) == 0.5
    assert table.loc["BC", ["P", "low", "high"]].tolist() == [1, 1, 1] and table.loc["CQL", "datasets"] == 1


def test_the_verdict_is_by_dataset(rows) -> None:
    decision = benchmark.verdict(benchmark.lines(rows), "IQL")
    assert decision.word == "mixed" and decision.findings["hopper medium-replay"] == "holds"
    assert benchmark.verdict(benchmark.lines(rows), "BC").word == "holds"


def test_the_papers_averages_are_those_of_its_rows() -> None:
    """The last line of Table 1, which is not copied but follows."""
    printed = {"BR-RCRL": 83.2, "DD": 81.8, "TT": 78.9, "DT": 74.7, "RvS": 71.7, "BC": 51.9, "10% BC": 74.0,
               "IBC": 27.8, "TD3+BC": 75.3, "IQL": 77.0, "CQL": 77.6, "BEAR": 48.2}  # fmt: skip
    assert TABLE_1.shape == (12, 9)
    for name, mean in TABLE_1.mean(axis=1).items():
        assert mean == pytest.approx(printed[str(name)], abs=0.35), name


# -- choosing online ---------------------------------------------------------------------------------------------


def test_ucb_tries_every_arm_once_and_keeps_the_best() -> None:
    arms = [np.full(4, value) for value in (10.0, 30.0, 20.0)]
    curve = ucb_curve(arms, 12, np.random.default_rng(0), default=0, repeats=500)
    assert curve[0] == 10 and len(curve) == 13
    assert curve[1] == pytest.approx(20, abs=1.5)  # one random arm
    assert (curve[3:] == 30).all()  # constant arms are known after one pull each


def test_with_noise_more_episodes_choose_better() -> None:
    rng = np.random.default_rng(1)
    arms = [rng.normal(mean, 20, 200) for mean in (40, 50, 60)]
    curve = ucb_curve(arms, 150, np.random.default_rng(0), repeats=200)
    assert curve[3] < curve[30] < curve[150] and curve[150] == pytest.approx(arms[2].mean(), abs=2)
    assert np.array_equal(curve, ucb_curve(arms, 150, np.random.default_rng(0), repeats=200))
    single = ucb_curve(arms[:1], 5, np.random.default_rng(0))
    assert single == pytest.approx(np.full(6, arms[0].mean()))


def test_choice_curves_start_at_the_default_and_end_at_the_best_setting(rows) -> None:
    arms, place = arms_of(rows[(rows["method"] == "br_rcrl") & (rows["dataset"] == HOPPER)], "delta", 0.1)
    assert len(arms) == 2 and place == 0 and len(arms[0]) == 9
    curves = choice_curves(rows, pulls=30, knobs={name: KNOBS[name] for name in (benchmark.RELEASED, "vanilla", "IQL")})
    assert list(curves) == [benchmark.RELEASED, "vanilla", "IQL"]
    means = [np.mean(scores_of(rows[rows["delta"] == delta], dataset, method="br_rcrl")) for delta in (0.1, 0.01)
             for dataset in ENVS]  # fmt: skip
    assert curves[benchmark.RELEASED].iloc[0] == pytest.approx(np.mean(means[:2]))
    assert curves[benchmark.RELEASED].iloc[-1] == pytest.approx(np.mean(means[2:]), abs=2)
    assert curves["IQL"].to_numpy() == pytest.approx(curves["IQL"].iloc[0])  # no knob, nothing to choose
    assert choice_curves(rows.iloc[:0]).empty


# -- figures -----------------------------------------------------------------------------------------------------


def test_figures_show_what_they_are_given(rows) -> None:
    found = benchmark.lines(rows)
    table = benchmark.aggregate(found)
    figure, axes = plt.subplots(2, 3)
    figures.draw_aggregate(axes[0, 0], found, table)
    assert [label.get_text() for label in axes[0, 0].get_yticklabels()] == list(table.index[::-1])
    profile = benchmark.profiles(found, np.linspace(0, 100, 11))
    figures.draw_curves(axes[0, 1], profile)
    assert len(axes[0, 1].get_lines()) == profile.shape[1] and axes[0, 1].get_xlabel() == "score"
    improvement = benchmark.improvement(found)
    figures.draw_improvement(axes[0, 2], improvement)
    assert len(axes[0, 2].get_yticklabels()) == len(improvement)
    figures.draw_cost(axes[1, 0], found, "core-minutes")
    assert {text.get_text() for text in axes[1, 0].texts} == set(found["method"])
    plt.close(figure)
