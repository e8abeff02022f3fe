"""Table 3: adaptive targets earn more than Max and than the schedule of the Decision Transformer."""

from __future__ import annotations

from typing import Any

import pandas as pd

from brrcrl_lib.study.claims.summary import judge_settings
from brrcrl_lib.study.claims.verdicts import Verdict

RULES: dict[str, dict[str, Any]] = {
    "adaptive, δ = 0.1": {"target": "adaptive"},
    "max": {"target": "max"},
    "DT scheduler": {"target": "dt_schedule"},
    "fixed: median": {"target": "fixed", "quantile": 0.5},
    "fixed: 90%": {"target": "fixed", "quantile": 0.9},
}
"""Fixed targets are quantiles of the training data's reward-to-go."""

MODELS: dict[str, dict[str, Any]] = {
    "authors": {"method": "br_rcrl", "objective": "authors"},
    "paper": {"method": "br_rcrl", "objective": "paper"},
    "vanilla": {"method": "vanilla"},
}


def rules_for(model: str) -> dict[str, dict[str, Any]]:
    """The target rules as settings of one model."""
    return {name: {**MODELS[model], **rule} for name, rule in RULES.items()}


def verdicts(rows: pd.DataFrame, model: str = "authors") -> dict[str, Verdict]:
    """Adaptive against each of the paper's two rivals, per dataset."""
    rules = rules_for(model)
    ours = rules.pop("adaptive, δ = 0.1")
    return {
        rival: judge_settings(f"adaptive targets earn more than {rival} ({model})", rows, ours, rules[rival])
        for rival in ("max", "DT scheduler")
    }
