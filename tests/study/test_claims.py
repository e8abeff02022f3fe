"""The verdicts that notebooks 05 and 07 to 11 print follow from the recorded rows; recomputed from the plain CSV."""

from __future__ import annotations

import csv
import json
from statistics import fmean

import numpy as np
import pandas as pd
import pytest
from notebook_text import printed
from scipy import stats

from brrcrl_lib.study.claims import (
    components,
    delivered,
    delta_sweep,
    independence,
    interest,
    objectives,
    paper_tables,
    target_rules,
)
from brrcrl_lib.study.claims.decisions import Decision
from brrcrl_lib.study.claims.rows import recorded
from brrcrl_lib.study.claims.summary import over_datasets, readable, summarise
from brrcrl_lib.study.claims.yardsticks import CLONING, MAKER, data_return, yardsticks
from brrcrl_lib.study.experiments.grids import GRIDS, cells, coverage
from brrcrl_lib.study.experiments.results import AS_PLAYED, RESULTS, command, read_grid, short_name

NOTEBOOK_OF = {
    "targets": "07_target_strategies",
    "delta_sweep": "08_delta_sweep",
    "target_vs_observed": "09_target_vs_observed",
    "ablations": "10_ablations",
    "rtg_independence": "11_rtg_independence",
}
SPANS = {"hopper": 3234.3 + 20.272305, "walker2d": 4592.3 - 1.629008, "halfcheetah": 12135.0 + 280.178953}
"""D4RL's reference returns, typed in once more."""


def plain_rows(*grids: str) -> list[dict[str, str]]:
    """The rows of results files by the standard library alone, training settings beside the rest."""
    rows = {}
    for grid in grids:
        with (RESULTS / f"{grid}.csv").open() as file:
            rows |= {row["key"]: {**row, **json.loads(row["variant"])} for row in csv.DictReader(file)}
    return list(rows.values())


def plain_seeds(rows: list[dict[str, str]], where: str, **wanted: object) -> dict[int, tuple[str, float]]:
    """Per training seed: which weights, and the mean return of its episodes."""

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

    chosen = [row for row in rows if short_name(row["dataset"]) == where and fits(row)]
    assert chosen, f"no rows for {wanted}"
    found = {int(row["train_seed"]): (row["train_key"], fmean(json.loads(row["returns"]))) for row in chosen}
    assert len(found) == len(chosen), "one row per training seed"
    return found


def holm_significant(p_values: list[float]) -> list[bool]:
    """Holm's procedure as its author tells it: from the smallest on, until one fails."""
    order, passed = sorted(range(len(p_values)), key=p_values.__getitem__), [False] * len(p_values)
    for rank, index in enumerate(order):
        if p_values[index] > 0.05 / (len(p_values) - rank):
            break
        passed[index] = True
    return passed


def expected(rows: list[dict[str, str]], places: list[str], ours: dict, theirs: dict, matters: float, alike: bool):
    """Estimates, findings and the word, from the plain rows and scipy's tests."""
    tests = {}
    for where in places:
        a, b = (plain_seeds(rows, where, **side) for side in (ours, theirs))
        span, shared = SPANS[where.split()[0]], sorted(a.keys() & b.keys())
        x, y = (np.array([100 * side[seed][1] / span for seed in sorted(side)]) for side in (a, b))
        paired = all(a[seed][0] == b[seed][0] for seed in shared)
        test = stats.ttest_rel(x, y) if paired else stats.ttest_ind(x, y, equal_var=False)
        tests[where] = (x.mean() - y.mean(), test.pvalue, test.confidence_interval(1 - 0.05 / len(places)))
    significant = holm_significant([p for _, p, _ in tests.values()])
    findings = {}
    for (where, (estimate, _, (low, high))), clear in zip(tests.items(), significant, strict=True):
        if alike:
            inside, outside = -matters <= low and high <= matters, low > matters or high < -matters
            findings[where] = "holds" if inside else "differs" if outside else "not decided"
        elif clear and estimate > 0 and high >= matters:
            findings[where] = "holds"
        elif clear and estimate < 0 and low <= -matters:
            findings[where] = "reversed"
        else:
            findings[where] = "too small" if high < matters else "not decided"
    found = set(findings.values())
    against = found - {"holds", "not decided"}
    word = ("holds" if found == {"holds"} else "does not hold" if found == against
            else "mixed" if "holds" in found and against else "not decided")  # fmt: skip
    return {where: estimate for where, (estimate, _, _) in tests.items()}, findings, word


def check(decision: Decision, sides: tuple[dict, dict], matters: float, text: str, *grids: str, alike=False) -> None:
    """The decision is what the plain rows and scipy say, and the notebook prints it word by word."""
    estimates, findings, word = expected(plain_rows(*grids), list(decision.effects), *sides, matters, alike)
    for name, effect in decision.effects.items():
        assert effect.estimate == pytest.approx(estimates[name])
    assert dict(decision.findings) == findings and decision.word == word
    assert str(decision) in text, f"the notebook says something else than: {decision}"


@pytest.mark.parametrize("model", target_rules.MODELS)
def test_target_verdicts_follow_from_the_rows(model: str) -> None:
    rules, rows = target_rules.rules_for(model), read_grid("targets")
    for (rival, decision), matters in zip(target_rules.decisions(rows, model).items(), (17 / 6, 14.1 / 6), strict=True):
        sides = (rules["adaptive, δ = 0.1"], rules[rival])
        check(decision, sides, matters, printed(NOTEBOOK_OF["targets"]), "targets")


def test_best_is_compared_with_best() -> None:
    """Both sides' rules from plain means of scores over the three environments that have all rules."""
    rows, means = plain_rows("targets"), {}
    for model in ("authors", "vanilla"):
        for rule, wanted in target_rules.rules_for(model).items():
            scores = [fmean(value for _, value in plain_seeds(rows, f"{world} medium-replay", **wanted).values()) / span
                      for world, span in SPANS.items()]  # fmt: skip
            low = {"hopper": 20.272305, "walker2d": -1.629008, "halfcheetah": 280.178953}
            means[model, rule] = fmean(scores) + fmean(low[world] / SPANS[world] for world in SPANS)
    best = {
        model: max(target_rules.RULES, key=lambda rule, m=model: means[m, rule]) for model in ("authors", "vanilla")
    }
    assert {model: target_rules.best_rules(read_grid("targets"))[model] for model in best} == best
    decision = target_rules.best_against_best(read_grid("targets"))
    sides = tuple(target_rules.rules_for(model)[rule] for model, rule in best.items())
    average = paper_tables.TABLE_1.mean(axis=1)
    check(decision, sides, (average["BR-RCRL"] - average["DT"]) / 2, printed(NOTEBOOK_OF["targets"]), "targets")


@pytest.mark.parametrize("objective", ["authors", "paper"])
def test_delta_verdicts_follow_from_the_rows(objective: str) -> None:
    found, text = delta_sweep.decisions(read_grid("delta_sweep"), objective), printed(NOTEBOOK_OF["delta_sweep"])
    for name, (ours, theirs) in {"down to 0.1": (0.1, 0.9), "below 0.1": (0.001, 0.1)}.items():
        sides = tuple({"objective": objective, "delta": delta} for delta in (ours, theirs))
        check(found[name], sides, 5.0, text, "delta_sweep")


def test_component_verdicts_follow_from_the_rows() -> None:
    found = components.decisions(read_grid("ablations"))
    halves = (8.3 + 2.8 + 2.1) / 6, (3.5 + 1.7 + 0.7) / 6, (13.5 + 6.9 + 1.9) / 6
    for (name, decision), matters in zip(found.items(), halves, strict=True):
        sides = (AS_PLAYED["br_rcrl"], components.PAPER_COMPONENTS[name])
        check(decision, sides, matters, printed(NOTEBOOK_OF["ablations"]), "ablations")


def test_changes_mirror_the_decisions() -> None:
    rows = read_grid("ablations")
    changes, decided = components.changes(rows), components.decisions(rows)
    for name, decision in decided.items():
        for where, effect in decision.effects.items():
            back = changes[name][where]
            assert (effect.low, effect.high) == pytest.approx((-back.high, -back.low))  # type: ignore[operator]
    signs = components.significant(changes)
    flat = [(effect, signs[name][where]) for name, there in changes.items() for where, effect in there.items()]
    clear = holm_significant([effect.p for effect, _ in flat])  # type: ignore[misc]
    assert [sign for _, sign in flat] == [
        int(np.sign(e.estimate)) if ok else 0 for (e, _), ok in zip(flat, clear, strict=True)
    ]


def test_independence_verdicts_follow_from_the_rows() -> None:
    found, text = independence.decisions(read_grid("rtg_independence")), printed(NOTEBOOK_OF["rtg_independence"])
    assert set(found) == set(independence.METHODS)
    for name, decision in found.items():
        wanted = independence.METHODS[name]
        sides = ({**wanted, "top_share": None}, {**wanted, "top_share": 0.2})
        alike = name.startswith("vanilla")
        check(decision, sides, 5.0 if alike else (8.0 + 7.4 + 4.2) / 6, text, "rtg_independence", alike=alike)


def test_imitation_verdicts_follow_from_the_rows() -> None:
    grids = ("engine", "targets", "delta_sweep", "ablations", "rtg_independence")
    rows = recorded()
    found = objectives.decisions(rows[rows["grid"] != "atari"])
    average = paper_tables.TABLE_1.mean(axis=1)
    matters = (average["BR-RCRL"] - average["10% BC"]) / 2
    for name, decision in found.items():
        ours, theirs = name.split(" against ")
        check(decision, (objectives.OURS[ours], CLONING[theirs]), matters, printed("05_train_continuous"), *grids)


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
        gaps: dict[int, list[float]] = {}
        for row in trace.itertuples():
            if not (row.cut and row.left <= delivered.MEMORY):
                gaps.setdefault(row.seed, []).append(row.observed - row.target)
        span = max(trace.observed.max(), trace.target.max()) - min(trace.observed.min(), trace.target.min())
        means = [100 * fmean(values) / span for values in gaps.values()]
        assert found.gap.estimate == pytest.approx(fmean(means))
        low, high = stats.ttest_1samp(means, 0).confidence_interval(0.95)
        assert (found.gap.low, found.gap.high) == pytest.approx((low, high))
        errors, shares = [], []
        for _, one in trace[~trace.near_cut].groupby("seed"):
            order = np.argsort(one["target"].to_numpy(), kind="stable")
            parts = [one.iloc[order[len(one) * k // 10 + (len(one) * k % 10 > 0) : -(-len(one) * (k + 1) // 10)]]
                     for k in range(10)]  # fmt: skip
            assert sum(map(len, parts)) == len(one)
            errors.append(100 * fmean(abs(part.observed.mean() - part.target.mean()) for part in parts) / span)
            shares.append(100 * fmean(row.observed >= row.target for row in one.itertuples()))
        assert found.error.estimate == pytest.approx(fmean(errors))
        assert found.reached.estimate == pytest.approx(fmean(shares))
        low, high = stats.ttest_1samp(errors, 0).confidence_interval(0.95)
        assert (found.error.low, found.error.high) == pytest.approx((low, high))
    matches = {name: delivered.match(trace) for name, trace in traces.items()}
    rises = {name: found for name, trace in traces.items() if (found := delivered.rise(trace))}
    assert str(delivered.match_decision(matches)) in text
    assert str(delivered.rise_decision(rises)) in text


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
    without_verdict = {"engine", "atari", "table1", "regimes", "again"}  # 05, 12, 13, 05; not shown yet
    assert set(GRIDS) == {*NOTEBOOK_OF, *without_verdict}


# -- effects of interest -----------------------------------------------------------------------------------------


def test_effects_of_interest_are_half_of_the_papers_at_most_the_cap() -> None:
    assert interest.INTERESTS["max"].points == pytest.approx((11.2 + 5.0 + 0.8) / 6)
    assert interest.INTERESTS["low returns"].points == pytest.approx((8.0 + 7.4 + 4.2) / 6)
    assert interest.INTERESTS["games"].points == interest.GAME_CAP
    assert interest.half_of(pd.Series([40.0]), 5.0, "x").points == 5.0
    assert interest.INTERESTS["max"].unit(["walker2d medium", "ant medium"]) == pytest.approx(5.0)
    assert interest.INTERESTS["max"].unit(["ant medium"]) == pytest.approx(17 / 3)
    assert interest.INTERESTS["delta"].unit(["walker2d medium"]) is None
    assert interest.table()["why"].str.len().min() > 10
    pong = interest.INTERESTS["games"].paper["pong"]  # 138.0 - 113.0 of Mnih's points, 30 in return, 35.3 of Wang's
    assert pong == pytest.approx(25.0 * 30.0 / 35.3)


def test_table_1_has_the_papers_averages() -> None:
    printed_row = [83.2, 81.8, 78.9, 74.7, 71.7, 51.9, 74.0, 27.8, 75.3, 77.0, 77.6, 48.2]
    assert paper_tables.TABLE_1.mean(axis=1).tolist() == pytest.approx(printed_row, abs=0.25)


# -- yardsticks --------------------------------------------------------------------------------------------------


def test_every_table_can_show_filtered_cloning_and_who_made_the_data() -> None:
    rows = read_grid("targets")
    table = readable(yardsticks(rows))
    assert MAKER in table.index and "cloning, best 20%" in table.index
    seeds = plain_seeds(plain_rows("rtg_independence"), "hopper medium-replay", method="cloning", top_share=0.2)
    assert table.loc["cloning, best 20%", "hopper medium-replay"].startswith(
        f"{fmean(v for _, v in seeds.values()):,.0f} ["
    )
    from brrcrl_lib.data.minari import load_dataset

    exact = float(load_dataset("brrcrl/hopper/medium-replay-v0").returns.mean())
    assert data_return("brrcrl/hopper/medium-replay-v0") == pytest.approx(exact, abs=0.1)
    assert data_return("mine/ant/medium-v0") is None and data_return("ladder/pong") < 0  # type: ignore[operator]


# -- on made-up rows ---------------------------------------------------------------------------------------------


def made_up(**columns: list) -> pd.DataFrame:
    count = len(next(iter(columns.values())))
    base = {"dataset": ["brrcrl/hopper/medium-replay-v0"] * count, "env": ["Hopper-v5"] * count}
    return pd.DataFrame({**base, **columns})


def test_summaries_and_tables_on_rows_made_by_hand() -> None:
    rows = made_up(
        target=["max", "max", "adaptive", "adaptive", "once"],
        train_seed=[0, 1, 0, 1, 0],
        returns=["[1, 3]", "[5, 7]", "[10, 10]", "[30, 30]", "[8, 8]"],
        score=[1.0, 2.0, 3.0, 5.0, 4.0],
    )
    settings = {name[0]: {"target": name} for name in ("adaptive", "max", "once", "fixed")}
    found = summarise(rows, settings).set_index("setting")
    assert list(found.index) == ["a", "m", "o"]
    assert found.loc["m", "return"] == pytest.approx(4) and found.loc["m", "seeds"] == (2.0, 6.0)
    low, high = stats.ttest_1samp([2.0, 6.0], 0).confidence_interval(0.95)
    assert (found.loc["m", "low"], found.loc["m", "high"]) == pytest.approx((low, high))
    table = readable(summarise(rows, settings))["hopper medium-replay"]
    assert table["a"].startswith("20 [") and table["o"] == "8"  # one seed has no interval
    pair = {name: settings[name] for name in "am"}
    mean = over_datasets(rows, pair)["a"]
    assert mean.estimate == pytest.approx(100 * (20 + 20.272305) / SPANS["hopper"])
    assert str(over_datasets(rows, {"o": settings["o"]})["o"]) == "0.9"  # one seed: no interval
    with pytest.raises(ValueError, match="no dataset has rows for every one"):
        over_datasets(rows, settings)


def test_trend_is_the_rank_correlation() -> None:
    rows = made_up(objective=["authors"] * 3, delta=[0.9, 0.1, 0.5], train_seed=[0, 0, 0], return_mean=[1.0, 30.0, 2.0])
    line = delta_sweep.trend(rows).iloc[0]
    assert line["rank correlation"] == pytest.approx(1) and line["best delta"] == 0.1
    falling = delta_sweep.trend(rows.assign(return_mean=[5.0, 3.0, 4.0])).iloc[0]
    assert falling["rank correlation"] == pytest.approx(-1) and falling["best delta"] == 0.9


def trace_of(observed: np.ndarray, target: np.ndarray, episodes: int = 4, shifts=(0.0, 0.5, 1.0)) -> pd.DataFrame:
    one = pd.DataFrame({"step": np.arange(len(observed)), "observed": observed, "target": target})
    parts = [one.assign(seed=seed, episode=episode, observed=observed + shift)
             for seed, shift in enumerate(shifts) for episode in range(episodes)]  # fmt: skip
    return pd.concat(parts, ignore_index=True).assign(cut=False, near_cut=False)


def test_a_match_is_judged_by_its_gap_and_its_range() -> None:
    target = np.linspace(0, 100, 200)
    close, far = delivered.match(trace_of(target + 4.5, target)), delivered.match(trace_of(target + 50, target))
    assert close.gap.estimate == pytest.approx(100 * 5 / close.span) and close.correlation > 0.99
    assert far.near_cut is None and far.share_cut == 0
    assert delivered.match_decision({"a": close}).word == "holds"
    assert delivered.match_decision({"b": far}).word == "does not hold"
    mixed = delivered.match_decision({"a": close, "b": far})
    assert mixed.word == "mixed" and mixed.findings == {"a": "holds", "b": "differs"}
    noisy = delivered.match(trace_of(target, target, shifts=(-40.0, 0.0, 40.0)))
    assert delivered.match_decision({"c": noisy}).word == "not decided" and noisy.rmse > 15
    assert delivered.match_table({"a": close}, mixed).loc["a", "matches"] == "holds"


def test_calibration_groups_steps_by_target() -> None:
    target = np.arange(8.0)
    table = delivered.calibration(trace_of(2 * target, target, shifts=(0.0,)), bins=4)
    assert table["target"].tolist() == [0.5, 2.5, 4.5, 6.5] and table["observed"].tolist() == [1.0, 5.0, 9.0, 13.0]
    assert table["low"].isna().all()  # one seed has no interval
    table = delivered.calibration(trace_of(target, target, shifts=(-1.0, 0.0, 1.0)), bins=2)
    low, high = stats.ttest_1samp([-1.0, 0.0, 1.0], 0).confidence_interval(0.95)
    assert table["low"].tolist() == pytest.approx([1.5 + low, 5.5 + low])
    assert table["high"].tolist() == pytest.approx([1.5 + high, 5.5 + high])


def test_errors_of_opposite_sign_do_not_cancel() -> None:
    """20 too much for the lower half of the targets, 20 too little for the upper: no mean gap, an error of 20."""
    target = np.linspace(0, 100, 200)
    observed = np.where(target < 50, target + 20, target - 20)
    found = delivered.match(trace_of(observed, target, shifts=(-0.1, 0.0, 0.1)))
    assert found.span == pytest.approx(100) and found.gap.estimate == pytest.approx(0, abs=1e-9)
    assert found.error.estimate == pytest.approx(20) and found.rmse == pytest.approx(20, abs=0.01)
    assert found.reached.estimate == pytest.approx(50)
    assert delivered.match_decision({"a": found}).word == "does not hold"
    assert delivered.match(trace_of(observed, target), bins=1).error.estimate < 1  # one group is the mean gap again


def test_steps_near_a_cut_are_not_judged() -> None:
    target = np.linspace(40, 60, 100)
    trace = trace_of(np.where(np.arange(100) < 60, target + 1, target - 50), target, shifts=(0.0, 0.0))
    assert delivered.match(trace).reached.estimate == pytest.approx(60)
    spared = delivered.match(trace.assign(near_cut=trace["step"] >= 60))
    assert spared.reached.estimate == pytest.approx(100) and spared.near_cut == pytest.approx(-50)
    assert spared.error.estimate == pytest.approx(100 / spared.span)


def test_a_rise_starts_in_the_middle() -> None:
    up = np.concatenate([np.full(50, 10.0), np.full(50, 0.0), np.full(150, 60.0)])
    found = delivered.rise(trace_of(up, up))
    assert found is not None and found.start == 10
    assert found.place.estimate == pytest.approx(20 - 50)
    assert delivered.rise_decision({"a": found}).word == "holds"
    low = np.concatenate([np.full(100, 0.0), np.full(150, 60.0)])
    from_the_floor = delivered.rise(trace_of(low, low))
    assert from_the_floor is not None
    assert delivered.rise_decision({"a": from_the_floor}).findings["a (starts in the middle)"] == "differs"
    assert delivered.rise(trace_of(up[:80], up[:80])) is None


def test_the_papers_tables_are_complete() -> None:
    assert list(paper_tables.TABLE_3.index) == list(target_rules.RULES)[:3]
    assert list(paper_tables.TABLE_4.index) == list(components.PAPER_COMPONENTS)
    assert paper_tables.TABLE_TOP_SHARES.notna().all(axis=None)
