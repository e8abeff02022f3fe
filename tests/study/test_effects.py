"""Effects from rows: paired where weights are shared, in points of score, of the newest datasets; every word made."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from brrcrl_lib.study.claims.effects import NoRows, best_setting, compare, effects, judge, judge_all, shares_weights
from brrcrl_lib.study.claims.rows import episode_returns, newest, recorded, source_of
from brrcrl_lib.study.claims.statistics import difference, pool

POINT = (3234.3 + 20.272305) / 100  # of Hopper, in return
HOPPER = "brrcrl/hopper/medium-replay-v0"


def rows(target: str, means: list[float], dataset: str = HOPPER, weights: str = "shared") -> pd.DataFrame:
    """One row per training seed; two episodes around each mean, given in points of score."""
    return pd.DataFrame(
        [
            {"dataset": dataset, "env": "Hopper-v5", "target": target, "train_seed": seed, "score": mean,
             "train_key": f"{weights}{seed}", "returns": json.dumps([(mean - 1) * POINT, (mean + 1) * POINT])}
            for seed, mean in enumerate(means)
        ]
    )  # fmt: skip


UP, SPREAD = [60.0, 61.0, 62.0, 63.0, 64.0], [40.0, 41.5, 41.0, 43.0, 44.0]


def test_shared_weights_are_paired_and_others_are_not() -> None:
    paired = compare(rows("adaptive", UP), rows("max", SPREAD))
    assert paired.paired and paired.estimate == pytest.approx(np.mean(UP) - np.mean(SPREAD))
    assert paired.p == pytest.approx(stats.ttest_rel(UP, SPREAD).pvalue)
    apart = compare(rows("adaptive", UP), rows("max", SPREAD, weights="other"))
    assert not apart.paired and apart.p == pytest.approx(stats.ttest_ind(UP, SPREAD, equal_var=False).pvalue)
    assert not shares_weights(rows("max", UP).drop(columns="train_key"), rows("max", UP))


def test_a_comparison_and_its_mirror_are_the_same() -> None:
    for weights in ("shared", "other"):
        there = compare(rows("a", UP), rows("b", SPREAD, weights=weights))
        back = compare(rows("b", SPREAD, weights=weights), rows("a", UP))
        assert (there.low, there.high) == pytest.approx((-back.high, -back.low))  # type: ignore[operator]


def test_paired_sides_use_the_seeds_that_both_have() -> None:
    assert compare(rows("a", UP), rows("b", SPREAD[:3])).n_ours == 3
    assert compare(rows("a", UP), rows("b", SPREAD[:3], weights="other")).n_ours == 5


@pytest.mark.parametrize(
    ("ours", "theirs", "word"),
    [
        (UP, SPREAD, "holds"),
        (SPREAD, UP, "does not hold"),
        ([50.0, 50.2, 50.1, 50.3, 50.0], [50.1, 50.0, 50.2, 50.1, 50.2], "does not hold"),
        ([10.0, 90.0, 40.0, 55.0, 70.0], [30.0, 20.0, 80.0, 35.0, 60.0], "not decided"),
        ([90.0], [10.0], "not decided"),
    ],
)
def test_each_word_from_rows_made_for_it(ours: list[float], theirs: list[float], word: str) -> None:
    table = pd.concat([rows("adaptive", ours), rows("max", theirs)])
    decision = judge("more", table, {"target": "adaptive"}, {"target": "max"}, matters=5)
    assert decision.word == word
    if word == "not decided" and len(ours) > 1:
        assert "5 seeds could have shown" in str(decision)


def test_mixed_needs_rows_that_point_both_ways() -> None:
    walker = "brrcrl/walker2d/medium-replay-v0"
    here = [rows("adaptive", UP), rows("max", SPREAD)]
    there = [rows("adaptive", SPREAD, walker), rows("max", UP, walker)]
    decision = judge("more", pd.concat([*here, *there]), {"target": "adaptive"}, {"target": "max"}, matters=5)
    assert decision.word == "mixed" and set(decision.findings.values()) == {"holds", "reversed"}


def test_several_rivals_are_one_family() -> None:
    table = pd.concat([rows("adaptive", UP), rows("max", SPREAD), rows("fixed", [62.2, 60.1, 63.0, 61.0, 64.2])])
    rivals = {name: {"target": name} for name in ("max", "fixed")}
    decision = judge_all("more", table, {"target": "adaptive"}, rivals, matters=5)
    assert decision.findings == {
        "hopper medium-replay (against max)": "holds",
        "hopper medium-replay (against fixed)": "too small",
    }
    with pytest.raises(NoRows, match="no dataset with a reference score"):
        judge_all("more", table, {"target": "adaptive"}, {"nobody": {"target": "none"}}, matters=5)


def test_the_best_setting_is_one_choice_over_all_datasets() -> None:
    walker = "brrcrl/walker2d/medium-replay-v0"
    table = pd.concat([rows("a", [50.0]), rows("b", [40.0]), rows("a", [10.0], walker), rows("b", [30.0], walker),
                       rows("a", [99.0], "brrcrl/walker2d/expert-v0")])  # fmt: skip
    settings = {name: {"target": name} for name in ("a", "b")}
    assert best_setting(table, settings) == "b"  # 35 against 30; the expert data lack b
    with pytest.raises(NoRows, match="every one of: a, c"):
        best_setting(table, {"a": {"target": "a"}, "c": {"target": "c"}})


def test_a_new_version_replaces_the_old_one() -> None:
    old, new = rows("max", SPREAD), rows("max", UP, HOPPER.replace("v0", "v1"))
    other = rows("max", UP, "brrcrl/walker2d/medium-v0")
    kept = newest(pd.concat([old, new, other]))
    assert set(kept["dataset"]) == {HOPPER.replace("v0", "v1"), "brrcrl/walker2d/medium-v0"}
    both = pd.concat([old, new, rows("adaptive", UP, HOPPER.replace("v0", "v1"))])
    assert effects(both, {"target": "adaptive"}, {"target": "max"})["hopper medium-replay"].estimate == 0


def test_recorded_rows_hold_every_cell_once() -> None:
    table = recorded()
    assert not table["key"].duplicated().any() and set(table["dataset"].map(source_of)) == {"kit"}
    assert source_of("d4rl/hopper/medium-replay-v2") == source_of("D4RL/hopper/medium-v2") == "d4rl"
    assert recorded("d4rl").empty or set(recorded("d4rl")["dataset"].map(source_of)) == {"d4rl"}


def test_rows_that_cannot_be_judged_are_refused(tmp_path) -> None:
    with pytest.raises(ValueError, match="has not recorded"):
        episode_returns(rows("max", []))
    with pytest.raises(ValueError, match="several rows for the training seed 0"):
        episode_returns(pd.concat([rows("max", [1.0]), rows("max", [2.0])]))
    with pytest.raises(FileNotFoundError, match="no results in"):
        recorded(folder=tmp_path)


# -- pooling -----------------------------------------------------------------------------------------------------


def test_independent_effects_pool_like_their_sum() -> None:
    rng = np.random.default_rng(0)
    groups = [rng.normal(m, s, 5) for m, s in ((3, 1), (5, 2), (1, 4))]
    found = pool([[difference(g, np.zeros(5), paired=True)] for g in groups])
    assert found is not None
    variances = [g.var(ddof=1) / 5 for g in groups]
    assert found.estimate == pytest.approx(np.mean([g.mean() for g in groups]))
    assert found.error == pytest.approx(np.sqrt(sum(variances)) / 3)
    assert found.df == pytest.approx(sum(variances) ** 2 / sum(v**2 / 4 for v in variances))


def test_effects_that_share_seeds_pool_no_narrower_than_they_are() -> None:
    """Two rivals of one model: the mean's error from the seeds themselves is at most what `pool` says."""
    rng = np.random.default_rng(1)
    for _ in range(50):
        ours, rivals = rng.normal(0, 3, 5), rng.normal(0, 1, (2, 5))
        found = pool([[difference(ours, rival, paired=True) for rival in rivals]])
        true = (ours - rivals.mean(axis=0)).std(ddof=1) / np.sqrt(5)
        assert found is not None and found.error is not None and found.error >= true - 1e-12
    assert pool([[difference([1.0], [0.0], paired=True)]]) is None
