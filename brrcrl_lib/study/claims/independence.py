"""Appendix: vanilla RCRL learns nothing from low-return trajectories, BR-RCRL does."""

from __future__ import annotations

from typing import Any

import pandas as pd

from brrcrl_lib.study.claims.summary import judge_settings
from brrcrl_lib.study.claims.verdicts import Verdict

SHARES: dict[str, float | None] = {"100%": None, "50%": 0.5, "20%": 0.2}

METHODS: dict[str, dict[str, Any]] = {
    "BR-RCRL": {"method": "br_rcrl", "target": "adaptive"},
    "vanilla, DT scheduler": {"method": "vanilla", "target": "dt_schedule"},
    "vanilla, adaptive": {"method": "vanilla", "target": "adaptive"},
    "cloning": {"method": "cloning"},
}


def settings() -> dict[str, dict[str, Any]]:
    """Every method on every share of the trajectories."""
    return {
        f"{name}, {share}": {**wanted, "top_share": value}
        for name, wanted in METHODS.items()
        for share, value in SHARES.items()
    }


def verdicts(rows: pd.DataFrame, share: str = "20%") -> dict[str, Verdict]:
    """All trajectories against the best share of them, for each method."""
    return {
        name: judge_settings(
            f"{name} earns more from all trajectories than from the best {share}",
            rows,
            {**wanted, "top_share": None},
            {**wanted, "top_share": SHARES[share]},
        )
        for name, wanted in METHODS.items()
    }
