"""The verdicts that notebooks 07 to 11 print follow from the recorded rows; recomputed here from the plain CSV."""

from __future__ import annotations

import csv
import json
from statistics import fmean

import nbformat
import numpy as np
import pandas as pd
import pytest

from brrcrl_lib.study.claims import components, delivered, delta_sweep, independence, paper_tables, target_rules
from brrcrl_lib.study.claims.scores import iqm
from brrcrl_lib.study.claims.summary import judge_settings, over_datasets, readable, summarise
from brrcrl_lib.study.claims.verdicts import Verdict
from brrcrl_lib.study.experiments.grids import GRIDS, cells, coverage
from brrcrl_lib.study.experiments.results import AS_PLAYED, RESULTS, command, read_grid, short_name
from brrcrl_lib.tools.notebooks import NOTEBOOKS

NOTEBOOK_OF = {
    "targets": "07_target_strategies",
    "delta_sweep": "08_delta_sweep",
    "target_vs_observed": "09_target_vs_observed",
    "ablations": "10_ablations",
    "rtg_independence": "11_rtg_independence",
}


def printed(name: str) -> str:
    """Everything that a notebook's stored outputs say."""
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    texts = [output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", [])]
    return "".join(texts)


def plain_rows(grid: str) -> list[dict[str, str]]:
    """The rows of a results file by the standard library alone, training settings beside the rest."""
    with (RESULTS / f"{grid}.csv").open() as file:
        return [{**row, **json.loads(row["variant"])} for row in csv.DictReader(file)]


def plain_mean(rows: list[dict[str, str]], **wanted: object) -> float:
    """Mean over training seeds of the mean of the episodes, of the rows whose columns read like `wanted`."""

    def fits(row: dict[str, str]) -> bool:
        for name, value in wanted.items():
            found = row.get(name)
            if value is None and found in (None, ""):
                continue
            if isinstance(value, float) and found not in (None, "") and float(found) == value:
                continue
            if str(found) != str(value):
                return False
        return True

    chosen = [row for row in rows if fits(row)]
    assert chosen, f"no rows for {wanted}"
    assert len({row["train_seed"] for row in chosen}) == len(chosen), "one row per training seed"
    return fmean(fmean(json.loads(row["returns"])) for row in chosen)


def check(verdicts: dict[str, Verdict], sides: dict[str, tuple[dict, dict]], grid: str, text: str) -> None:
    """Each verdict's differences are those of plain means, and the notebook prints the verdict word by word."""
    rows = plain_rows(grid)
    ids = {short_name(row["dataset"]): row["dataset"] for row in rows}
    for name, verdict in verdicts.items():
        ours, theirs = sides[name]
        assert verdict.effects, name
        for effect in verdict.effects:
            a = plain_mean(rows, dataset=ids[effect.where], **ours)
            b = plain_mean(rows, dataset=ids[effect.where], **theirs)
            assert effect.ours == pytest.approx(a) and effect.theirs == pytest.approx(b)
            assert effect.difference.estimate == pytest.approx(a - b)
            assert effect.difference.low <= effect.difference.estimate <= effect.difference.high
        assert str(verdict) in text, f"the notebook says something else than: {verdict}"


@pytest.mark.parametrize("model", target_rules.MODELS)
def test_target_verdicts_follow_from_the_rows(model: str) -> None:
    rules = target_rules.rules_for(model)
    sides = {rival: (rules["adaptive, δ = 0.1"], rules[rival]) for rival in ("max", "DT scheduler")}
    found = target_rules.verdicts(read_grid("targets"), model)
    check(found, sides, "targets", printed(NOTEBOOK_OF["targets"]))


@pytest.mark.parametrize("objective", ["authors", "paper"])
def test_delta_verdicts_follow_from_the_rows(objective: str) -> None:
    at = lambda delta: {"objective": objective, "delta": delta}  # noqa: E731
    sides = {"down to 0.1": (at(0.1), at(0.9)), "below 0.1": (at(0.001), at(0.1))}
    found = delta_sweep.verdicts(read_grid("delta_sweep"), objective)
    check(found, sides, "delta_sweep", printed(NOTEBOOK_OF["delta_sweep"]))


def test_component_verdicts_follow_from_the_rows() -> None:
    sides = {name: (AS_PLAYED["br_rcrl"], wanted) for name, wanted in components.PAPER_COMPONENTS.items()}
    found = components.verdicts(read_grid("ablations"))
    check(found, sides, "ablations", printed(NOTEBOOK_OF["ablations"]))


def test_independence_verdicts_follow_from_the_rows() -> None:
    sides = {
        name: ({**wanted, "top_share": None}, {**wanted, "top_share": 0.2})
        for name, wanted in independence.METHODS.items()
    }
    found = independence.verdicts(read_grid("rtg_independence"))
    check(found, sides, "rtg_independence", printed(NOTEBOOK_OF["rtg_independence"]))


def test_match_and_rise_follow_from_the_traces() -> None:
    """Gaps recomputed by hand, with a literal sum of discounted rewards at one step of one episode."""
    rows = read_grid("target_vs_observed")
    traces = delivered.read_traces(rows)
    text = printed(NOTEBOOK_OF["target_vs_observed"])
    assert set(traces) == {short_name(name) for name in rows["dataset"]}
    for trace in traces.values():
        one = trace[(trace.seed == 0) & (trace.episode == 0)]
        rewards = one["reward"].to_list()
        assert one["observed"].iloc[3] == pytest.approx(
            sum(0.99**k * r for k, r in enumerate(rewards[3:])), rel=1e-6, abs=1e-3
        )
        found = delivered.match(trace)
        calm = [
            row.observed - row.target for row in trace.itertuples() if not (row.cut and row.left <= delivered.MEMORY)
        ]
        assert found.gap.estimate == pytest.approx(fmean(calm))
    matches = {name: delivered.match(trace) for name, trace in traces.items()}
    rises = {name: found for name, trace in traces.items() if (found := delivered.rise(trace))}
    assert f"Observed matches target: {delivered.match_word(matches)}." in text
    assert f"The target starts in the middle and rises: {delivered.rise_word(rises)}." in text


@pytest.mark.parametrize("grid", NOTEBOOK_OF)
def test_recorded_rows_are_the_grid_and_can_be_made_again(grid: str) -> None:
    """Every row is a cell of today's grid; the notebook says how many cells have rows, and how to make one again."""
    keys = set(read_grid(grid)["key"])
    assert keys <= {cell.key for cell in cells(grid)}
    assert coverage(grid, keys) in printed(NOTEBOOK_OF[grid])
    assert any(command(grid, key) in printed(NOTEBOOK_OF[grid]) for key in keys)


def test_coverage_counts_the_cells_that_have_rows() -> None:
    keys = [cell.key for cell in cells("engine")]
    assert coverage("engine", keys) == f"all {len(set(keys))} cells of the grid"
    assert coverage("engine", [*keys[:2], "another"]).startswith(f"2 of {len(set(keys))} cells")
    assert "claim nothing" in coverage("engine", keys, "smoke")


def test_every_grid_but_the_engine_has_a_notebook() -> None:
    assert set(GRIDS) == {*NOTEBOOK_OF, "engine", "atari"}  # rows of games come with notebook 12


# -- on made-up rows ---------------------------------------------------------------------------------------------


def made_up(**columns: list) -> pd.DataFrame:
    count = len(next(iter(columns.values())))
    base = {"dataset": ["brrcrl/hopper/medium-replay-v0"] * count, "env": ["Hopper-v5"] * count}
    return pd.DataFrame({**base, **columns})


def test_summaries_and_tables_on_rows_made_by_hand() -> None:
    rows = made_up(
        target=["max", "max", "adaptive", "adaptive"],
        train_seed=[0, 1, 0, 1],
        returns=["[1, 3]", "[5, 7]", "[10, 10]", "[30, 30]"],
        score=[1.0, 2.0, 3.0, 5.0],
    )
    settings = {"a": {"target": "adaptive"}, "m": {"target": "max"}, "nobody": {"target": "fixed"}}
    found = summarise(rows, settings).set_index("setting")
    assert list(found.index) == ["a", "m"]
    assert found.loc["m", "return"] == pytest.approx(4) and found.loc["m", "seeds"] == (2.0, 6.0)
    assert readable(summarise(rows, settings)).loc["a", "hopper medium-replay"].startswith("20 [")
    del settings["nobody"]
    assert over_datasets(rows, settings)["a"].estimate == pytest.approx(iqm([[3.0], [5.0]]))
    assert judge_settings("more", rows, settings["a"], settings["m"]).effects[0].difference.estimate == 16
    with pytest.raises(ValueError, match="no dataset has rows for both sides"):
        judge_settings("more", rows, settings["a"], {"target": "fixed"})
    with pytest.raises(ValueError, match="no dataset has rows for every one"):
        over_datasets(rows, {**settings, "nobody": {"target": "fixed"}})


def test_trend_is_the_rank_correlation() -> None:
    rows = made_up(objective=["authors"] * 3, delta=[0.9, 0.1, 0.5], train_seed=[0, 0, 0], return_mean=[1.0, 30.0, 2.0])
    line = delta_sweep.trend(rows).iloc[0]
    assert line["rank correlation"] == pytest.approx(1) and line["best delta"] == 0.1
    falling = delta_sweep.trend(rows.assign(return_mean=[5.0, 3.0, 4.0])).iloc[0]
    assert falling["rank correlation"] == pytest.approx(-1) and falling["best delta"] == 0.9


def test_effects_use_the_seeds_that_both_sides_have() -> None:
    usual = AS_PLAYED["br_rcrl"]
    full = [{**usual, "train_seed": seed, "returns": f"[{value}]"} for seed, value in ((0, 10.0), (1, 90.0))]
    early = {**usual, "fusion": "early", "train_seed": 0, "returns": "[13.0]"}
    rows = pd.DataFrame([*full, early]).assign(dataset="brrcrl/hopper/medium-replay-v0", env="Hopper-v5")
    effect = components.effects(rows)["early fusion"]["hopper medium-replay"]
    assert (effect.ours, effect.theirs) == (13.0, 10.0)


def trace_of(observed: np.ndarray, target: np.ndarray, episodes: int = 4) -> pd.DataFrame:
    one = pd.DataFrame({"step": np.arange(len(observed)), "observed": observed, "target": target})
    parts = [one.assign(seed=seed, episode=episode) for seed in (0, 1) for episode in range(episodes)]
    return pd.concat(parts, ignore_index=True).assign(cut=False, near_cut=False)


def test_a_match_is_judged_by_its_gap_and_its_range() -> None:
    target = np.linspace(0, 100, 200)
    close, far = delivered.match(trace_of(target + 5, target)), delivered.match(trace_of(target + 50, target))
    assert close.met and close.gap.estimate == pytest.approx(5) and close.correlation == pytest.approx(1)
    assert not far.met and far.near_cut is None and far.share_cut == 0
    assert delivered.match_word({"a": close, "b": far}) == "holds partly"
    assert delivered.match_word({"b": far}) == "does not hold here"


def test_a_rise_starts_in_the_middle() -> None:
    up = np.concatenate([np.full(50, 10.0), np.full(50, 0.0), np.full(150, 60.0)])
    found = delivered.rise(trace_of(up, up))
    assert found is not None and found.start == 10 and found.rise.low > 0
    assert found.place == pytest.approx(0.2) and delivered.rise_word({"a": found}) == "holds"
    assert delivered.rise(trace_of(up[:80], up[:80])) is None
    assert delivered.rise_word({}).startswith("cannot be judged")


def test_the_papers_tables_are_complete() -> None:
    assert list(paper_tables.TABLE_3.index) == list(target_rules.RULES)[:3]
    assert list(paper_tables.TABLE_4.index) == list(components.PAPER_COMPONENTS)
    assert paper_tables.TABLE_TOP_SHARES.notna().all(axis=None)
