"""Appendix: vanilla RCRL learns nothing from low-return trajectories, BR-RCRL does."""

from __future__ import annotations

from typing import Any

import pandas as pd

from brrcrl_lib.study.claims.decisions import Decision, decide, decide_alike
from brrcrl_lib.study.claims.effects import effects
from brrcrl_lib.study.claims.interest import INTERESTS
from brrcrl_lib.study.claims.summary import variants

SHARES: dict[str, float | None] = {"100%": None, "50%": 0.5, "20%": 0.2}

METHODS: dict[str, dict[str, Any]] = variants(
    {
        "BR-RCRL": {},
        "vanilla, DT scheduler": {"method": "vanilla", "target": "dt_schedule"},
        "vanilla, adaptive": {"method": "vanilla"},
        "cloning": {"method": "cloning"},
    }
)


def settings() -> dict[str, dict[str, Any]]:
    """Every method on every share of the trajectories."""
    return {
        f"{name}, {share}": {**wanted, "top_share": value}
        for name, wanted in METHODS.items()
        for share, value in SHARES.items()
    }


def decisions(rows: pd.DataFrame, share: str = "20%") -> dict[str, Decision]:
    """All trajectories against the best share of them: more for BR-RCRL, alike for vanilla RCRL, as the paper has it.

    Cloning stands beside them: what it gains from trimming is not about return conditioning.
    """
    found = {}
    for name, wanted in METHODS.items():
        change = effects(rows, {**wanted, "top_share": None}, {**wanted, "top_share": SHARES[share]})
        if not change:
            continue
        if name.startswith("vanilla"):
            claim = f"{name} earns as much from all trajectories as from the best {share}"
            found[name] = decide_alike(claim, change, matters=INTERESTS["low returns, rivals"].points, decimals=1)
        else:
            claim = f"{name} earns more from all trajectories than from the best {share}"
            found[name] = decide(claim, change, matters=INTERESTS["low returns"].points, decimals=1)
    return found
