"""From rows to effects in points of normalised score, dataset by dataset.

Two settings of one trained model share its weights: their seeds are paired. Two trainings are independent, even where
their episodes start alike (the starts are a small part of the spread, so this errs on the safe side).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from brrcrl_lib.base.errors import KitError
from brrcrl_lib.study.claims.decisions import Decision, decide
from brrcrl_lib.study.claims.rows import episode_returns, newest
from brrcrl_lib.study.claims.scores import has_score, normalised_score
from brrcrl_lib.study.claims.statistics import Effect, difference
from brrcrl_lib.study.experiments.results import order_datasets, select, short_name

Setting = Mapping[str, Any]


class NoRows(KitError):
    """A claim for which nothing is recorded yet."""


def compare(ours: pd.DataFrame, theirs: pd.DataFrame) -> Effect:
    """The effect of `ours` over `theirs` in points of score: rows of one dataset and one setting each."""
    env = str(ours["env"].iloc[0])
    paired = shares_weights(ours, theirs)
    if paired:  # of the seeds that both sides have
        shared = set(ours["train_seed"]) & set(theirs["train_seed"])
        ours, theirs = (side[side["train_seed"].isin(shared)] for side in (ours, theirs))
    a, b = (normalised_score(env, episode_returns(side).mean(axis=1)) for side in (ours, theirs))
    return difference(a, b, paired=paired)


def shares_weights(ours: pd.DataFrame, theirs: pd.DataFrame) -> bool:
    """Whether the seeds that both sides have are the same trained models."""
    if "train_key" not in ours or "train_key" not in theirs:
        return False
    a, b = (side.set_index("train_seed")["train_key"] for side in (ours, theirs))
    both = a.index.intersection(b.index)
    return bool(len(both)) and bool((a[both] == b[both]).all())


def effects(rows: pd.DataFrame, ours: Setting, theirs: Setting, label: str = "") -> dict[str, Effect]:
    """Per dataset that has rows of both settings and a reference score; `label` is added to the dataset's name."""
    sides = [dict(iter(select(newest(rows), **side).groupby("dataset"))) for side in (ours, theirs)]
    return {
        f"{short_name(dataset)}{label}": compare(sides[0][dataset], sides[1][dataset])
        for dataset in order_datasets(map(str, sides[0].keys() & sides[1].keys()))
        if has_score(str(sides[0][dataset]["env"].iloc[0]))
    }


def judge(claim: str, rows: pd.DataFrame, ours: Setting, theirs: Setting, matters: float) -> Decision:
    """The decision on "`ours` earns more than `theirs`", on every dataset that has rows for both."""
    found = effects(rows, ours, theirs)
    if not found:
        raise NoRows(f"no dataset with a reference score has rows for both sides of the claim: {claim}")
    return decide(claim, found, matters=matters, decimals=1)


def judge_all(claim: str, rows: pd.DataFrame, ours: Setting, rivals: Mapping[str, Setting], matters: float) -> Decision:
    """The same against several rivals: one family of comparisons, every dataset against every rival."""
    found: dict[str, Effect] = {}
    for name, theirs in rivals.items():
        found |= effects(rows, ours, theirs, f" (against {name})")
    if not found:
        raise NoRows(f"no dataset with a reference score has rows for both sides of the claim: {claim}")
    return decide(claim, found, matters=matters, decimals=1)


def best_setting(rows: pd.DataFrame, settings: Mapping[str, Setting]) -> str:
    """The setting with the highest mean score over the datasets on which all of them have rows: one choice per method.

    Where two methods are compared, each gets its own best setting from equally many candidates.
    """
    rows = newest(rows)
    scored = rows[rows["score"].notna()]
    tables = {name: select(scored, **wanted).groupby("dataset")["score"].mean() for name, wanted in settings.items()}
    means = pd.DataFrame(tables).dropna().mean()
    if means.isna().any() or means.empty:
        raise NoRows(f"no dataset has rows for every one of: {', '.join(settings)}")
    return str(means.idxmax())
