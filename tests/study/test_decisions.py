"""Every verdict word, shown by effects made for it."""

from __future__ import annotations

import numpy as np
import pytest

from brrcrl_lib.study.claims.decisions import WORDS, Decision, decide, decide_alike, directions, merge
from brrcrl_lib.study.claims.statistics import Effect, difference

SPREAD = np.array([-2.0, -1.0, 0.0, 1.0, 2.0])  # five seeds, standard error 0.71


def effect(mean: float, scale: float = 1.0, seeds: int = 5) -> Effect:
    spread = SPREAD[:seeds] if seeds > 1 else np.zeros(1)
    return difference(mean + scale * spread, np.zeros(seeds), paired=True)


UP, DOWN, NOTHING, UNCLEAR = effect(100), effect(-100), effect(0.5), effect(40, scale=60)
TINY = effect(8)  # significant, and ends below what matters
ONE = effect(1000, seeds=1)


def judge(*effects: Effect, matters: float = 20, **options: int) -> Decision:
    return decide("more is more", {f"task {i}": found for i, found in enumerate(effects)}, matters=matters, **options)


@pytest.mark.parametrize(
    ("effects", "word"),
    [
        ((UP,), "holds"),
        ((UP, UP, UP), "holds"),
        ((DOWN, DOWN), "does not hold"),
        ((NOTHING, NOTHING), "does not hold"),
        ((NOTHING, DOWN), "does not hold"),
        ((TINY,), "does not hold"),
        ((UP, DOWN), "mixed"),
        ((UP, DOWN, UNCLEAR), "mixed"),
        ((UP, NOTHING), "mixed"),
        ((UNCLEAR,), "not decided"),
        ((UP, UNCLEAR, UNCLEAR), "not decided"),
        ((DOWN, UNCLEAR), "not decided"),
        ((NOTHING, UNCLEAR), "not decided"),
        ((ONE,), "not decided"),
        ((UP, ONE), "not decided"),
    ],
)
def test_every_word(effects: tuple[Effect, ...], word: str) -> None:
    assert judge(*effects).word == word
    assert word in WORDS


def test_swapping_the_sides_swaps_holds_and_reversed() -> None:
    assert [*judge(UP, DOWN).findings.values()] == ["holds", "reversed"]
    assert [*judge(DOWN, UP).findings.values()] == ["reversed", "holds"]


def test_a_significant_trifle_counts_neither_way() -> None:
    assert directions({"a": TINY, "b": effect(-8)}) == {"a": 1, "b": -1}
    assert {*judge(TINY, effect(-8)).findings.values()} == {"too small"}
    assert judge(TINY, matters=5).word == "holds"


def test_with_nothing_of_interest_only_the_direction_counts() -> None:
    assert judge(TINY, matters=0).word == "holds"
    assert judge(effect(-8), matters=0).word == "does not hold"
    assert judge(NOTHING, matters=0).word == "not decided"


def test_more_comparisons_ask_for_more() -> None:
    """p = 0.03 is enough alone, and not beside five others that show nothing."""
    modest = effect(2.3)
    assert 0.01 < modest.p < 0.05  # type: ignore[operator]
    assert directions({"a": modest}) == {"a": 1}
    assert directions({"a": modest, **{str(i): NOTHING for i in range(5)}})["a"] == 0


def test_a_minimum_of_seeds_can_be_asked_for() -> None:
    assert judge(UP, least_seeds=5).word == "holds"
    assert judge(UP, least_seeds=6).word == "not decided"


def test_partial_evidence_is_told_behind_the_word() -> None:
    decision = judge(UP, UNCLEAR, ONE)
    assert decision.summary == "not decided (holds on 1 of 3, not decided on 2 of 3)"
    text = str(decision)
    assert text.startswith(f"more is more: {decision.summary}. task 0 +100 [+98, +102]: holds;")
    visible = UNCLEAR.visible(0.05 / 3)
    assert f"not decided, 5 seeds could have shown {visible:,.0f}" in text
    assert "task 2 +1,000, n = 1: not decided" in text
    assert judge(UP).summary == "holds"
    assert judge(NOTHING, DOWN).summary == "does not hold (reversed on 1 of 2, too small on 1 of 2)"


def test_what_cannot_be_judged_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing was compared"):
        decide("c", {}, matters=1)
    with pytest.raises(ValueError, match="0 or more; got -1"):
        judge(UP, matters=-1)


# -- alike, and claims of several parts --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("effects", "word"),
    [
        ((NOTHING,), "holds"),
        ((TINY, NOTHING), "holds"),
        ((UP, DOWN), "does not hold"),
        ((NOTHING, UP), "mixed"),
        ((UNCLEAR,), "not decided"),
        ((NOTHING, UNCLEAR), "not decided"),
        ((ONE,), "not decided"),
    ],
)
def test_every_word_of_a_claim_that_two_things_are_alike(effects: tuple[Effect, ...], word: str) -> None:
    named = {f"task {i}": found for i, found in enumerate(effects)}
    assert decide_alike("as much", named, matters=20).word == word


def test_alike_is_refused_without_a_margin() -> None:
    with pytest.raises(ValueError, match="within a margin above 0; got 0"):
        decide_alike("c", {"a": UP}, matters=0)
    with pytest.raises(ValueError, match="nothing was compared"):
        decide_alike("c", {}, matters=1)


def test_parts_are_merged_and_share_alpha() -> None:
    parts = [decide("p", {f"a ({i})": found}, matters=20, alpha=0.025) for i, found in enumerate((UP, DOWN))]
    whole = merge("both", *parts)
    assert whole.word == "mixed" and whole.alpha == pytest.approx(0.05) and whole.claim == "both"
    with pytest.raises(ValueError, match="different names"):
        merge("both", parts[0], parts[0])


def test_the_overall_effect_leaves_single_seeds_out() -> None:
    decision = judge(UP, DOWN, ONE)
    assert decision.overall is not None and decision.overall.estimate == pytest.approx(0)
    assert decide("c", {"a": ONE}, matters=1).overall is None
    assert judge(UP, UNCLEAR).visible == pytest.approx(UNCLEAR.visible(0.05 / 2))
    assert judge(UP).visible is None
