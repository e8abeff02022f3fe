"""Table 3: adaptive targets earn more than Max and than the schedule of the Decision Transformer.

And the headline of Table 1 and the abstract, best against best: BR-RCRL under its best rule against vanilla RCRL under
its own.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from brrcrl_lib.study.claims.decisions import Decision
from brrcrl_lib.study.claims.effects import best_setting, judge
from brrcrl_lib.study.claims.interest import INTERESTS
from brrcrl_lib.study.claims.summary import variants

RULES: dict[str, dict[str, Any]] = {
    "adaptive, δ = 0.1": {"target": "adaptive"},
    "max": {"target": "max"},
    "DT scheduler": {"target": "dt_schedule"},
    "fixed: median": {"target": "fixed", "quantile": 0.5},
    "fixed: 90%": {"target": "fixed", "quantile": 0.9},
}
"""Fixed targets are quantiles of the training data's reward-to-go."""
OURS = "adaptive, δ = 0.1"
RIVALS = ("max", "DT scheduler")

MODELS: dict[str, dict[str, Any]] = {
    "authors": {"method": "br_rcrl", "objective": "authors"},
    "paper": {"method": "br_rcrl", "objective": "paper"},
    "vanilla": {"method": "vanilla"},
}
TITLES = {
    "authors": "BR-RCRL, released code's objective",
    "paper": "BR-RCRL, paper text's objective",
    "vanilla": "vanilla RCRL",
}


def rules_for(model: str) -> dict[str, dict[str, Any]]:
    """The target rules as settings of one model."""
    return variants({name: {**MODELS[model], **rule} for name, rule in RULES.items()})


def decisions(rows: pd.DataFrame, model: str = "authors") -> dict[str, Decision]:
    """Adaptive against each of the paper's two rivals, per dataset; the same weights, so paired."""
    rules = rules_for(model)
    return {
        rival: judge(
            f"adaptive targets earn more than {rival} ({TITLES[model]})",
            rows,
            rules[OURS],
            rules[rival],
            INTERESTS[rival].points,
        )
        for rival in RIVALS
    }


def best_rules(rows: pd.DataFrame) -> dict[str, str]:
    """The best rule of each model: one choice over all datasets that have every rule."""
    return {model: best_setting(rows, rules_for(model)) for model in MODELS}


def best_against_best(rows: pd.DataFrame, model: str = "authors") -> Decision:
    """BR-RCRL under its best rule against vanilla RCRL under its own; both choose from the same five."""
    chosen = best_rules(rows)
    ours, theirs = rules_for(model)[chosen[model]], rules_for("vanilla")[chosen["vanilla"]]
    claim = f"{TITLES[model]} ({chosen[model]}) earns more than vanilla RCRL ({chosen['vanilla']}), best against best"
    return judge(claim, rows, ours, theirs, INTERESTS["vanilla"].points)
