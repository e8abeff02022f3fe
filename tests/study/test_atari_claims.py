"""The verdicts of notebook 12 follow from rows: written to a CSV file, read back, recomputed from the plain file."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from statistics import fmean

import numpy as np
import pandas as pd
import pytest
from notebook_text import printed

from brrcrl_lib.methods.base import method_named
from brrcrl_lib.methods.br_rcrl_joint import JointConfig
from brrcrl_lib.study.claims import atari
from brrcrl_lib.study.claims.delta_sweep import trend
from brrcrl_lib.study.claims.paper_tables import TABLE_2, TABLE_2_SPREAD
from brrcrl_lib.study.claims.scores import normalised_score
from brrcrl_lib.study.claims.summary import readable, summarise
from brrcrl_lib.study.experiments.grids import cells, coverage
from brrcrl_lib.study.experiments.results import REQUIRED, RESULTS, command, read_grid

ENVS = {"breakout": "ALE/Breakout-v5", "qbert": "ALE/Qbert-v5", "pong": "ALE/Pong-v5"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A grid of which Seaquest, and Q*bert's distributional learner, are not recorded yet."""
    rng, lines = np.random.default_rng(0), []
    for number, cell in enumerate(cells("atari")):
        game = cell.dataset.split("/")[1]
        learner = cell.training.get("objective")
        if game not in ENVS or (game == "qbert" and learner == "distributional_td"):
            continue
        returns = rng.integers(-20, 20, size=10).tolist() if number % 3 else rng.integers(5, 25, size=10).tolist()
        lines.append(
            {"key": cell.key, "train_key": cell.train_key, "dataset": cell.dataset, "env": ENVS[game],
             "method": cell.method, "objective": learner, "variant": "{}",
             "train_seed": cell.seed, **vars(method_named(cell.method).Act()), **cell.act, "episodes": 10,
             "return_mean": fmean(returns), "returns": json.dumps(returns),
             "score": float(normalised_score(ENVS[game], fmean(returns))), "reference": "{}",
             "train_steps": cell.config.steps,
             "train_seconds": 200.0 if learner == "distributional_td" else 100.0, "max_steps": cell.max_steps,
             "cut_off": 1, "discount": 0.5, "reward_clip": 1.0, "preset": "laptop", "versions": "{}",
             "revision": "test"}
        )  # fmt: skip
    folder = tmp_path_factory.mktemp("results")
    table = pd.DataFrame(lines)
    assert set(REQUIRED) <= set(table)
    table.to_csv(folder / "atari.csv", index=False)
    return folder


@pytest.fixture(scope="module")
def rows(folder: Path) -> pd.DataFrame:
    return read_grid("atari", folder)


def plain_mean(folder: Path, **wanted: object) -> float:
    """Mean over training seeds of the mean of the games, by the standard library alone."""
    with (folder / "atari.csv").open() as file:
        chosen = [
            row
            for row in csv.DictReader(file)
            if all(
                float(row[name]) == value if isinstance(value, float) else row[name] == str(value)
                for name, value in wanted.items()
            )
        ]
    assert chosen and len({row["train_seed"] for row in chosen}) == len(chosen), "one row per training seed"
    return fmean(fmean(json.loads(row["returns"])) for row in chosen)


def joint(learner: str, target: str = "adaptive", delta: float = 0.1) -> dict[str, object]:
    return {"method": "br_rcrl_joint", "objective": learner, "target": target, "delta": delta, "clone": False}


SIDES: dict[str, tuple[dict, dict]] = {
    "learners": (joint("monte_carlo"), joint("distributional_td")),
    **{
        f"vanilla, adaptive over {name}": (
            {"method": "vanilla", "target": "adaptive"},
            {"method": "vanilla", "target": target},
        )
        for name, target in (("max", "max"), ("DT scheduler", "dt_schedule"))
    },
}
SPANS = {"breakout": 30.5 - 1.7, "qbert": 13455.0 - 163.9, "pong": 14.6 + 20.7}
for _learner, _name in (("monte_carlo", "Monte Carlo"), ("distributional_td", "distributional TD")):
    SIDES |= {
        f"{_name} beats vanilla, adaptive": (joint(_learner), {"method": "vanilla", "target": "adaptive"}),
        f"{_name} beats vanilla, max": (joint(_learner), {"method": "vanilla", "target": "max"}),
        f"{_name} beats vanilla, DT scheduler": (joint(_learner), {"method": "vanilla", "target": "dt_schedule"}),
        f"{_name} beats cloning": (joint(_learner), {"method": "cloning"}),
        f"{_name}, asking": (joint(_learner), {**joint(_learner), "clone": True}),
        f"{_name}, down to 0.1": (joint(_learner), joint(_learner, delta=0.9)),
        f"{_name}, below 0.1": (joint(_learner, delta=0.001), joint(_learner)),
        f"{_name}, adaptive": (joint(_learner), joint(_learner, "max")),
    }


def test_every_claim_is_checked_here() -> None:
    assert set(SIDES) == set(atari.contests())


@pytest.mark.parametrize("name", SIDES)
def test_decisions_follow_from_the_rows(name: str, folder: Path, rows: pd.DataFrame) -> None:
    ours, theirs = SIDES[name]
    decision = atari.decisions(rows)[name]
    both = "distributional" in name or name == "learners"
    assert list(decision.effects) == (["breakout", "pong"] if both else list(ENVS))
    assert decision.matters == 2.0
    for game, effect in decision.effects.items():
        a, b = (plain_mean(folder, dataset=f"ladder/{game}", **side) for side in (ours, theirs))
        assert effect.estimate == pytest.approx(100 * (a - b) / SPANS[game])
        assert f"{game} {100 * (a - b) / SPANS[game]:+,.1f}" in str(decision)
        if game == "qbert":  # one training seed
            assert effect.error is None and decision.findings[game] == "not decided"
        else:
            assert effect.low < effect.estimate < effect.high


def test_table_2_is_best_against_best(folder: Path, rows: pd.DataFrame) -> None:
    """The best rule by plain means of scores over the games that have every rule, on both sides."""
    complete = ("breakout", "pong")  # Q*bert lacks the distributional learner

    def score(**setting: object) -> float:
        return fmean(100 * plain_mean(folder, dataset=f"ladder/{game}", **setting) / SPANS[game] for game in complete)

    ours = {f"BR-RCRL, {name}, {rule}": score(**joint(learner, target)) for learner, name in atari.LEARNERS.items()
            for rule, target in (("adaptive, δ = 0.1", "adaptive"), ("max", "max"), ("DT scheduler", "dt_schedule"))
            }  # fmt: skip
    best = max(ours, key=lambda name: ours[name])
    assert atari.best_against_best(rows).claim.startswith(f"{best} earns more than vanilla, ")
    assert any("(against cloning)" in name for name in atari.best_against_best(rows).effects)


def test_what_is_not_recorded_is_said(rows: pd.DataFrame) -> None:
    assert atari.unjudged(rows) == []
    without = rows[rows["method"] != "cloning"]
    assert atari.unjudged(without) == [
        "BR-RCRL (Monte Carlo) earns more than cloning",
        "BR-RCRL (distributional TD) earns more than cloning",
    ]
    judged = atari.decisions(without)
    assert atari.word(judged, "Monte Carlo beats cloning") == "not recorded yet"
    assert atari.word(judged, "learners") == judged["learners"].summary
    assert atari.seeds_in_words(rows) == "breakout 3 training seeds, qbert 1 training seed, pong 3 training seeds"
    assert "2.0 times as long" in atari.training_cost(rows)
    assert "only one" in atari.training_cost(rows[rows["objective"] == "monte_carlo"])


def test_every_row_belongs_to_one_named_setting(rows: pd.DataFrame) -> None:
    """Methods, rules and the sweep together name all that the grid measures, and one row per seed each."""
    named = set()
    settings = {**atari.METHODS}
    for learner in atari.LEARNERS:
        settings |= {f"{learner} {name}": wanted for name, wanted in atari.sweep(learner).items()}
        settings |= {f"{learner} {name}": wanted for name, wanted in atari.rules_for(learner).items()}
    for wanted in settings.values():
        chosen = atari.select(rows, **wanted)
        assert not chosen.duplicated(["dataset", "train_seed"]).any()
        named |= set(chosen["key"])
    assert named == set(rows["key"])


def test_the_sweep_has_every_delta_of_the_grid(rows: pd.DataFrame) -> None:
    found = summarise(rows, atari.sweep("monte_carlo"))
    assert found[found["dataset"] == "pong"]["setting"].tolist() == [
        "0.9",
        "0.5",
        "0.2",
        "0.1",
        "0.05",
        "0.01",
        "0.001",
    ]
    lines = trend(atari.sweep_rows(rows)).set_index(["dataset", "objective"])
    assert ("qbert", "distributional_td") not in lines.index and len(lines) == 5
    assert "." in readable(found).loc["0.1", "pong"].split()[0]


# -- Table 2 -----------------------------------------------------------------------------------------------------


def test_table_2_is_the_papers_in_its_units(rows: pd.DataFrame) -> None:
    printed = atari.table_2(rows, "Mnih").loc["the paper"]
    for game in TABLE_2:
        assert [float(text.replace(",", "")) for text in printed[game]] == TABLE_2[game].tolist()
    assert atari.paper_raw().loc["BR-RCRL", "pong"] == pytest.approx(-20.7 + 1.38 * 30)  # 20.7 of at most 21
    assert set(TABLE_2_SPREAD.index) == set(TABLE_2)


def test_our_rows_stand_below_it_in_all_units(folder: Path, rows: pd.DataFrame) -> None:
    mean = plain_mean(folder, dataset="ladder/pong", **joint("monte_carlo"))
    expected = {"raw score": mean, "Mnih": 100 * (mean + 20.7) / 30.0, "Wang": 100 * (mean + 20.7) / 35.3}
    for unit, value in expected.items():
        table = atari.table_2(rows, unit).loc["here"]
        assert float(table.loc["BR-RCRL, Monte Carlo", "pong"].replace(",", "")) == pytest.approx(value, abs=0.051)
        assert (table["seaquest"] == "-").all() and table.loc["BR-RCRL, distributional TD", "qbert"] == "-"


def test_both_protocols_answer_the_same_questions(rows: pd.DataFrame) -> None:
    table = atari.protocols(rows, JointConfig())
    assert table.notna().all(axis=None)
    assert table.loc["gradient steps"].tolist() == ["3,000,000", f"{JointConfig().steps:,}"]
    assert table.loc["games per training", "here"] == "10"
    assert "pong 5,000" in table.loc["a game is cut off after", "here"]
    assert f"{len(rows)} games" in table.loc["a game is cut off after", "here"]
    assert command("atari", rows["key"].iloc[0]).startswith("brrcrl experiments run atari --key ")


# -- the notebook ------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not (RESULTS / "atari.csv").exists(), reason="no Atari rows ship yet")
def test_the_notebook_says_what_the_recorded_rows_say() -> None:
    recorded = read_grid("atari")
    text = printed("12_atari")
    assert set(recorded["key"]) <= {cell.key for cell in cells("atari")}
    assert coverage("atari", recorded["key"]) in text and atari.seeds_in_words(recorded) in text
    for decision in (*atari.decisions(recorded).values(), atari.best_against_best(recorded)):
        assert str(decision) in text
    for claim in atari.unjudged(recorded):
        assert f"{claim}: no rows yet." in text
    assert any(command("atari", key) in text for key in recorded["key"])


# -- traces ------------------------------------------------------------------------------------------------------


def test_traces_count_clipped_and_discounted_rewards(folder: Path, rows: pd.DataFrame) -> None:
    line = atari.select(rows, dataset="ladder/breakout", train_seed=0, **atari.rules_for("monte_carlo")["max"])
    (folder / "traces").mkdir(exist_ok=True)
    trace = pd.DataFrame({"episode": [0, 0, 0, 1], "step": [0, 1, 2, 0], "reward": [0.0, 7.0, 1.0, 0.0],
                          "target": [1.2] * 4, "predicted": [0.3] * 4})  # fmt: skip
    trace.to_csv(folder / "traces" / f"{line['key'].iloc[0]}.csv.gz", index=False)
    found = atari.game_traces(rows, folder)
    assert {game: list(rules) for game, rules in found.items()} == {"breakout": ["max"]}
    assert found["breakout"]["max"]["observed"].tolist() == [0.75, 1.5, 1.0, 0.0]  # discount 0.5, rewards at most 1
    told = atari.asked_and_got(found).loc[("breakout", "max")]
    assert told["steps that got it"] == "25%" and told["correlation"] == "-"
    assert told["observed - target"].startswith("-0.66 [")  # of both games alike, however long
