"""An environment without a card, from rows to figures: returns as ever, and no reference score."""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from brrcrl_lib.returns import ReturnBuckets
from brrcrl_lib.study.claims import delivered
from brrcrl_lib.study.claims.effects import NoRows, judge
from brrcrl_lib.study.claims.scores import normalised_score
from brrcrl_lib.study.claims.summary import over_datasets, readable, summarise
from brrcrl_lib.study.experiments.results import order_datasets, short_name
from brrcrl_lib.study.figures.experiments import draw_effects, draw_settings

ANT, HOPPER = "mine/ant/medium-v0", "brrcrl/hopper/medium-replay-v0"
SETTINGS = {"adaptive": {"target": "adaptive"}, "max": {"target": "max"}}


@pytest.fixture
def rows() -> pd.DataFrame:
    """Three seeds of two settings on both datasets; "adaptive" earns 100 more. Ant's scores are empty, as recorded."""
    found = []
    for dataset, env in ((ANT, "Ant-v5"), (HOPPER, "Hopper-v5")):
        for target, extra in (("adaptive", 100.0), ("max", 0.0)):
            for seed in range(3):
                returns = [1000.0 + extra + seed, 1010.0 + extra + seed]
                score = None if env == "Ant-v5" else float(normalised_score(env, np.mean(returns)))
                found.append({"dataset": dataset, "env": env, "target": target, "train_seed": seed, "key": f"{seed}",
                              "returns": json.dumps(returns), "score": score})  # fmt: skip
    return pd.DataFrame(found)


def test_names_and_order() -> None:
    assert order_datasets([ANT, HOPPER]) == [HOPPER, ANT] and short_name(ANT) == "ant medium"
    with pytest.raises(ValueError, match="no reference score for 'Ant-v5'"):
        normalised_score("Ant-v5", 100.0)
    with pytest.raises(ValueError, match="no V_max for 'mine/ant/medium-v0'"):
        ReturnBuckets.from_authors(ANT)


def test_a_summary_has_returns_and_a_dash_for_the_score(rows: pd.DataFrame) -> None:
    summary = summarise(rows, SETTINGS)
    ant = summary[summary["dataset"] == "ant medium"]
    assert ant["return"].tolist() == pytest.approx([1106, 1006]) and ant["score"].isna().all()
    assert readable(summary, "score")["ant medium"].tolist() == ["-", "-"]
    assert readable(summary, "score").loc["max", "hopper medium-replay"] == "31.5"  # 100 (1006 + 20.3) / 3254.6
    assert readable(summary).loc["max", "ant medium"].startswith("1,006 [")
    assert (readable(summarise(rows[rows["dataset"] == ANT], SETTINGS), "score") == "-").all(axis=None)


def test_averages_leave_it_out_or_say_why_there_are_none(rows: pd.DataFrame) -> None:
    hopper = rows[rows["dataset"] == HOPPER]
    assert over_datasets(rows, SETTINGS) == over_datasets(hopper, SETTINGS)
    with pytest.raises(ValueError, match="no reference score for Ant-v5"):
        over_datasets(rows[rows["dataset"] == ANT], SETTINGS)


def test_it_is_drawn_like_any_other_and_judged_by_nobody(rows: pd.DataFrame) -> None:
    """What would matter is stated in points of score, so a verdict needs a reference score."""
    decision = judge("asking pays", rows, SETTINGS["adaptive"], SETTINGS["max"], matters=2)
    assert decision.word == "holds" and list(decision.effects) == ["hopper medium-replay"]
    with pytest.raises(NoRows, match="no dataset with a reference score"):
        judge("asking pays", rows[rows["dataset"] == ANT], SETTINGS["adaptive"], SETTINGS["max"], matters=2)
    figure, (left, right) = plt.subplots(1, 2)
    summary = summarise(rows, SETTINGS)
    draw_settings(left, summary[summary["dataset"] == "ant medium"], list(SETTINGS))
    draw_effects(right, {}, ["asking"])
    figure.canvas.draw()
    assert [text.get_text() for text in right.texts] == ["–"]
    assert (left.lines[1].get_xdata()[0], left.lines[1].get_ydata()[0]) == (pytest.approx(1106), 0)
    plt.close(figure)


def test_its_traces_are_cut_by_the_usual_clock(rows: pd.DataFrame, tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()
    steps = pd.DataFrame({"episode": [0] * 1000 + [1] * 5, "step": [*range(1000), *range(5)], "reward": 1.0,
                          "target": 50.0, "predicted": 50.0})  # fmt: skip
    steps.to_csv(tmp_path / "traces" / "0.csv.gz", index=False)
    chosen = rows[(rows["dataset"] == ANT) & (rows["key"] == "0")].iloc[:1]
    trace = delivered.read_traces(chosen, tmp_path)["ant medium"]
    assert trace.groupby("episode")["cut"].first().tolist() == [True, False]
