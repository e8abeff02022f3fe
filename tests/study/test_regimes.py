"""The rule of docs/regimes.md, on rows for which it can be followed by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from brrcrl_lib.study.analysis import regimes
from brrcrl_lib.study.claims.rows import recorded
from brrcrl_lib.study.experiments.grids import LENGTHS, TUNING_DATA, TUNING_SEEDS
from brrcrl_lib.study.figures import engine as engine_plots

HALFCHEETAH, HOPPER = TUNING_DATA
OURS, VANILLA, CLONING = "BR-RCRL, released code", "vanilla", "cloning"
PARTS = {"br_rcrl": "return_nll", "vanilla": "conditional_nll", "cloning": "prior_nll"}


def row(method: str, dataset: str, seed: int, steps: int, loss: float, score: float, **settings: Any) -> dict[str, Any]:
    """A row as `experiments merge` writes it; settings of training go to `variant`, those of playing to columns."""
    played = {"target": "adaptive" if method != "cloning" else None, "prior_weight": None, "source": None}
    if method == "br_rcrl":
        played |= {"prior_weight": 1.0, "source": "auto"}
    played |= {name: settings.pop(name) for name in list(settings) if name in played}
    return {
        "key": f"{method}{dataset}{seed}{steps}{settings}{played}", "dataset": dataset, "env": "HalfCheetah-v5",
        "method": method, "objective": "authors" if method == "br_rcrl" else None,
        "variant": json.dumps({"steps": steps, **settings}), "train_seed": seed, "train_steps": steps,
        "train_seconds": steps / 10, "return_mean": 1.0, "returns": "[1.0]", "score": score, "reference": "{}",
        "held_out": json.dumps({PARTS[method]: loss, "loss": 99.0}), "preset": "laptop", "versions": "{}",
        "revision": "0", **played,
    }  # fmt: skip


def lines(method: str, steps: int, losses: tuple[float, float], scores: tuple[float, float], spread: float = 0.0,
          **settings: Any) -> list[dict[str, Any]]:  # fmt: skip
    """Rows of all tuning seeds on Hopper and HalfCheetah, scores `spread` apart: its standard deviation over seeds."""
    return [
        row(method, dataset, seed, steps, loss, score + spread * (seed - 101), **settings)
        for dataset, loss, score in zip((HOPPER, HALFCHEETAH), losses, scores, strict=True)
        for seed in TUNING_SEEDS
    ]


def tidy(*groups: list[dict[str, Any]]) -> pd.DataFrame:
    return regimes.tidy(pd.DataFrame([line for group in groups for line in group]))


def choose(method: str, *groups: list[dict[str, Any]]) -> regimes.Choice:
    found = regimes.choose(tidy(*groups), method)
    assert found is not None
    return found


# -- rows --------------------------------------------------------------------------------------------------------


def write(folder: Path, rows: list[dict[str, Any]], grid: str = "regimes") -> None:
    pd.DataFrame(rows).to_csv(folder / f"{grid}.csv", index=False)


def test_rows_of_a_results_file_become_lines(tmp_path: Path) -> None:
    write(tmp_path, [row("br_rcrl", HOPPER, 100, 500, 2.5, 20.0, weight_decay=0.1, source="prior_samples"),
                     row("br_rcrl", HOPPER, 101, 500, 2.25, 21.0, prior_weight=0.5),
                     row("cloning", HALFCHEETAH, 100, 1000, -0.5, 3.0, ema=0.999)])  # fmt: skip
    assert regimes.recorded(tmp_path / "elsewhere") is None
    first, second, last = regimes.recorded(tmp_path).to_dict("records")
    assert first == {
        "method": OURS, "steps": 500, "setting": "weight_decay 0.1", "target": "adaptive", "alpha": 1.0,
        "source": "prior_samples", "dataset": "hopper medium-replay", "seed": 100, "loss": 2.5, "score": 20.0,
        "minutes": pytest.approx(50 / 60),
    }  # fmt: skip
    assert second["alpha"] == 0.5 and second["source"] == "value_model" and second["setting"] == ""
    assert last["method"] == CLONING and last["setting"] == "ema 0.999" and last["target"] == last["source"] == ""


def test_tuning_seeds_appear_in_no_result(tmp_path: Path) -> None:
    write(tmp_path, [row("cloning", HOPPER, 100, 500, 1.0, 5.0)])
    write(tmp_path, [row("cloning", HOPPER.replace("v1", "v0"), 0, 6000, 1.0, 5.0)], "engine")
    assert recorded(folder=tmp_path)["train_seed"].tolist() == [0]


# -- step 1 ------------------------------------------------------------------------------------------------------


def lengths(*scores: float, hopper: tuple[float, ...] = (3.0, 2.9, 2.915, 2.93)) -> list[dict[str, Any]]:
    """Four lengths: 500 is trained too little, 2,000 overfits Hopper by 0.015 nats, 4,000 by 0.03."""
    steps = (500, 1000, 2000, 4000)
    halfcheetah = (2.0, 1.9, 1.8, 1.7)
    return [
        line
        for length, score, a, b in zip(steps, scores, hopper, halfcheetah, strict=True)
        for line in lines("br_rcrl", length, (a, b), (score - 1, score + 1))
    ]


@pytest.mark.parametrize(
    ("scores", "steps"),
    [
        ((10.0, 12.0, 20.0, 90.0), 2000),  # 4,000 earns most, and overfits Hopper
        ((10.0, 18.5, 20.0, 90.0), 1000),  # within two points, the shorter
        ((18.0, 18.5, 20.0, 90.0), 500),  # trained too little is no overfitting
        ((17.9, 17.9, 20.0, 90.0), 2000),
    ],
)
def test_the_shortest_length_within_two_points_that_overfits_nowhere(scores: tuple[float, ...], steps: int) -> None:
    assert choose(OURS, lengths(*scores)).steps == steps


def test_overfitting_is_told_by_the_better_place_that_lies_behind() -> None:
    table = choose(OURS, lengths(10.0, 12.0, 20.0, 90.0)).table.loc["1 steps"]
    assert table["the rule"].to_dict() == {
        "500": "", "1,000": "", "2,000": "chosen", "4,000": "overfits on hopper medium-replay",
    }  # fmt: skip
    assert table["score"].tolist() == [10.0, 12.0, 20.0, 90.0]
    assert table.loc["2,000", "minutes"] == pytest.approx(2000 / 10 / 60)


def test_vanilla_is_judged_by_the_better_of_its_target_rules() -> None:
    short = lines("vanilla", 500, (1.0, 1.0), (10.0, 10.0)) + lines(
        "vanilla", 500, (1.0, 1.0), (30.0, 4.0), target="max"
    )
    long = lines("vanilla", 1000, (1.0, 1.0), (18.0, 18.0)) + lines(
        "vanilla", 1000, (1.0, 1.0), (2.0, 2.0), target="max"
    )
    found = choose(VANILLA, short, long)  # 17 under Max against 18 adaptive: within two points
    assert (found.steps, found.target) == (500, "max")
    assert found.table.loc["1 steps"]["score"].tolist() == [17.0, 18.0]


def test_what_some_seed_or_dataset_lacks_is_not_judged_yet() -> None:
    complete = lines("cloning", 500, (1.0, 1.0), (5.0, 5.0))
    better = lines("cloning", 1000, (0.5, 0.5), (50.0, 50.0))
    elsewhere = [row("cloning", HOPPER.replace("hopper", "walker2d"), seed, 1000, 0.5, 50.0) for seed in TUNING_SEEDS]
    others = [row("cloning", name, seed, 1000, 0.5, 50.0) for name in TUNING_DATA for seed in (0, 1, 2)]
    assert choose(CLONING, complete, better[:-1], elsewhere, others).steps == 500
    assert choose(CLONING, complete, better).steps == 1000
    assert regimes.choose(tidy(complete), OURS) is None


# -- step 2 ------------------------------------------------------------------------------------------------------


def settings(*groups: tuple[str, Any, float, float, float]) -> regimes.Choice:
    """(name, value, loss on Hopper, on HalfCheetah, spread) beside a plain training with losses 2 and 1, spread 3."""
    plain = lines("br_rcrl", 500, (2.0, 1.0), (20.0, 20.0), spread=3.0)
    return choose(
        OURS, plain, *(lines("br_rcrl", 500, (a, b), (0.0, 0.0), s, **{name: v}) for name, v, a, b, s in groups)
    )


@pytest.mark.parametrize(
    ("group", "taken"),
    [
        (("weight_decay", 0.1, 1.98, 0.98, 3.0), "weight_decay 0.1"),
        (("weight_decay", 0.1, 1.995, 0.995, 0.0), ""),  # lowers the mean loss by 0.005 only
        (("weight_decay", 1, 1.95, 1.015, 3.0), ""),  # by 0.0175, but raises HalfCheetah's by 0.015
        (("fusion", "early", 1.96, 1.005, 3.0), "fusion early"),
        (("ema", 0.999, 2.005, 1.005, 2.0), "ema 0.999"),  # no better loss, but steadier on both
        (("ema", 0.999, 2.02, 1.02, 2.0), ""),
        (("ema", 0.999, 2.005, 1.005, 3.5), ""),
    ],
)
def test_a_setting_is_taken_if_the_likelihood_gains(group: tuple[str, Any, float, float, float], taken: str) -> None:
    assert settings(group).setting == taken


def test_averaging_must_be_steadier_on_both_datasets() -> None:
    plain = lines("br_rcrl", 500, (2.0, 1.0), (20.0, 20.0), spread=3.0)
    averaged = lines("br_rcrl", 500, (2.0, 1.0), (20.0, 20.0), spread=2.0, ema=0.999)
    wild = [
        {**line, "score": 20 + 4 * (line["score"] - 20)} if line["dataset"] == HOPPER else line for line in averaged
    ]
    assert choose(OURS, plain, averaged).setting == "ema 0.999"
    assert choose(OURS, plain, wild).setting == ""


def test_several_settings_may_be_taken_but_one_value_of_each() -> None:
    found = settings(("weight_decay", 0.1, 1.98, 0.98, 3.0), ("weight_decay", 1, 1.97, 0.97, 3.0),
                     ("components", 5, 1.9, 0.9, 3.0), ("fusion", "early", 2.1, 1.1, 3.0))  # fmt: skip
    assert found.setting == "components 5, weight_decay 1"
    assert found.table.loc["2 training"]["the rule"].to_dict() == {
        "weight_decay 0.1": "not taken", "weight_decay 1": "taken", "components 5": "taken",
        "fusion early": "not taken",
    }  # fmt: skip


# -- step 3 ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scores", "alpha"),
    [
        ({0.25: 30.0, 0.5: 29.0, 1.0: 27.0, 2.0: 20.0, 4.0: 10.0}, 0.5),  # 1 is three points behind
        ({0.25: 30.0, 0.5: 29.0, 1.0: 28.0, 2.0: 20.0, 4.0: 10.0}, 1.0),
        ({0.5: 30.0, 1.0: 20.0, 2.0: 31.0}, 2.0),  # equally near: the better
    ],
)
def test_the_prior_weight_nearest_to_one_within_two_points(scores: dict[float, float], alpha: float) -> None:
    groups = [lines("br_rcrl", 500, (2.0, 1.0), (score, score), prior_weight=a) for a, score in scores.items()]
    found = choose(OURS, *groups)
    assert found.alpha == alpha and found.source is None
    assert found.table.loc["3 alpha"]["the rule"].tolist().count("chosen") == 1


@pytest.mark.parametrize(("mixture", "source"), [(21.9, "value_model"), (22.1, "prior_samples")])
def test_another_source_must_earn_more_than_two_points(mixture: float, source: str) -> None:
    plain = lines("br_rcrl", 500, (2.0, 1.0), (20.0, 20.0))
    other = lines("br_rcrl", 500, (2.0, 1.0), (mixture, mixture), source="prior_samples")
    assert choose(OURS, plain, other).source == source


def test_how_it_is_played_is_judged_with_the_settings_that_were_taken() -> None:
    plain = lines("br_rcrl", 500, (2.0, 1.0), (20.0, 20.0)) + lines(
        "br_rcrl", 500, (2.0, 1.0), (90.0, 90.0), prior_weight=4.0
    )
    decayed = [
        line
        for alpha, score in ((1.0, 20.0), (0.5, 25.0))
        for line in lines("br_rcrl", 500, (1.9, 0.9), (score, score), prior_weight=alpha, weight_decay=1)
    ]
    assert choose(OURS, plain, decayed).alpha == 0.5


def test_the_tables_say_what_was_chosen_and_what_it_cost() -> None:
    found = regimes.choices(tidy(lengths(10.0, 12.0, 20.0, 90.0), lines("cloning", 500, (1.0, 1.0), (5.0, 5.0))))
    assert list(found) == [OURS, CLONING]
    assert regimes.headline(found) == "Training steps by the rule, so far: released code 2,000, cloning 500"
    measured = [line for steps in LENGTHS for line in lines("cloning", steps, (1.0, 1.0), (5.0, 5.0))]
    assert regimes.headline(regimes.choices(tidy(measured))) == "Training steps by the rule: cloning 500"
    assert regimes.chosen_table(found).loc[OURS].to_dict() == {
        "steps": "2,000", "settings": "plain", "target": "adaptive", "alpha": "-", "source": "-", "minutes": "3.3",
        "score": "20.0",
    }  # fmt: skip
    assert len(regimes.alternatives(found)) == 5
    assert regimes.headline({}).startswith("Too few rows") and regimes.alternatives({}).empty


# -- the figure --------------------------------------------------------------------------------------------------


def test_the_figure_draws_every_method_on_every_dataset() -> None:
    table = tidy(lengths(10.0, 12.0, 20.0, 90.0), lines("cloning", 500, (1.0, 1.0), (5.0, 5.0)))
    figure = engine_plots.regimes_figure(table, "Title")
    axes = np.array(figure.get_axes()).reshape(2, 2)
    assert [axis.get_title() for axis in axes[0]] == ["hopper medium-replay", "halfcheetah medium-replay"]
    drawn = {line.get_label(): line for line in axes[0][0].get_lines()}
    assert drawn[OURS].get_ydata().tolist() == [9.0, 11.0, 19.0, 89.0]
    losses = {line.get_label(): line for line in axes[1][0].get_lines()}
    assert losses[OURS].get_ydata() == pytest.approx([0.1, 0.0, 0.015, 0.03])
    plt.close(figure)
