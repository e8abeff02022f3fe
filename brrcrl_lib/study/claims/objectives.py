"""Table 1 in small: both objectives and cloning on the same data, from the rows of the grid `engine`."""

from __future__ import annotations

import numpy as np
import pandas as pd

from brrcrl_lib.worlds import DatasetName

POLICIES = ("cloning", "paper, mode", "paper", "authors, mode", "authors")
"""Trained by plain cloning; each objective's prior alone (its mode); each objective with adaptive inference."""


def label_results(results: pd.DataFrame) -> pd.DataFrame:
    """The rows of a results file with a column `policy`, sorted by dataset, in the order of POLICIES, by seed."""
    mode = np.where(results["clone"].fillna(False).astype(bool), ", mode", "")
    policy = np.where(results["method"] == "cloning", "cloning", results["objective"].fillna("") + mode)
    order = pd.Series(policy, index=results.index).map(POLICIES.index)
    labelled = results.assign(policy=policy, order=order).sort_values(["dataset", "order", "train_seed"])
    return labelled.drop(columns="order")


def against_cloning(results: pd.DataFrame, policy: str) -> str:
    """What `policy` earns on each dataset in multiples of cloning, or, where cloning earns nothing, both returns."""
    phrases = []
    for dataset, rows in results.groupby("dataset", sort=False):
        mean = rows.groupby("policy")["return_mean"].mean()
        if policy in mean and "cloning" in mean:
            ours, theirs, name = mean[policy], mean["cloning"], DatasetName.parse(str(dataset)).world_name
            phrases.append(
                f"{name} {ours / theirs:.1f} times" if theirs > 1 else f"{name} {ours:.0f} against {theirs:.0f}"
            )
    return ", ".join(phrases) or "nothing to compare yet"
