"""Table 1 in small: both objectives and cloning on the same data, from the rows of the grid `engine`."""

from __future__ import annotations

import numpy as np
import pandas as pd

from brrcrl_lib.study.claims.decisions import Decision
from brrcrl_lib.study.claims.effects import best_setting, judge
from brrcrl_lib.study.claims.interest import INTERESTS
from brrcrl_lib.study.claims.summary import variants
from brrcrl_lib.study.claims.target_rules import TITLES
from brrcrl_lib.study.claims.yardsticks import CLONING
from brrcrl_lib.study.experiments.results import select

POLICIES = ("cloning", "paper, mode", "paper", "authors, mode", "authors")
"""Trained by plain cloning; each objective's prior alone (its mode); each objective with adaptive inference."""
NAMES = {
    "cloning": "cloning",
    "paper, mode": "paper text, prior alone",
    "paper": "paper text",
    "authors, mode": "released code, prior alone",
    "authors": "released code",
}
"""As a reader knows them: the authors wrote both objectives, one in the paper and one in the code."""

OURS = variants({name: {"objective": name} for name in ("authors", "paper")})


def label_results(results: pd.DataFrame) -> pd.DataFrame:
    """The rows of a results file with a column `policy`, sorted by dataset, in the order of POLICIES, by seed."""
    mode = np.where(results["clone"].fillna(False).astype(bool), ", mode", "")
    policy = np.where(results["method"] == "cloning", "cloning", results["objective"].fillna("") + mode)
    order = pd.Series(policy, index=results.index).map(POLICIES.index)
    labelled = results.assign(policy=policy, order=order).sort_values(["dataset", "order", "train_seed"])
    return labelled.drop(columns="order")


def best_cloning(rows: pd.DataFrame) -> str:
    """The best of cloning all episodes and cloning a best share of them, where it has rows."""
    known = {name: wanted for name, wanted in CLONING.items() if not select(rows, **wanted).empty}
    return best_setting(rows, known)


def decisions(rows: pd.DataFrame) -> dict[str, Decision]:
    """Each objective against plain cloning and against the best cloning (%BC); `rows` of all grids."""
    best = best_cloning(rows)
    return {
        f"{ours} against {theirs}": judge(
            f"{TITLES[ours]} earns more than {theirs}", rows, OURS[ours], CLONING[theirs], INTERESTS["imitation"].points
        )
        for ours in OURS
        for theirs in dict.fromkeys(("cloning", best))
    }
