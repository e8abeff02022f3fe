"""Table 4: every component of the method matters; and the choices that the paper does not mention."""

from __future__ import annotations

import pandas as pd

from brrcrl_lib.study.claims.decisions import Decision, directions
from brrcrl_lib.study.claims.effects import effects, judge
from brrcrl_lib.study.claims.interest import INTERESTS
from brrcrl_lib.study.claims.statistics import Effect
from brrcrl_lib.study.claims.summary import variants
from brrcrl_lib.study.experiments.results import AS_PLAYED

PAPER_COMPONENTS = variants(
    {
        "full model": {},
        "without L1": {"return_weight": 0.0},
        "uniform negatives": {"uniform_share": 1.0},
        "without the reparameterisation": {"method": "vanilla", "target": "dt_schedule"},
    }
)
"""The rows of Table 4. Without the reparameterisation: vanilla RCRL with the schedule of the Decision Transformer."""

UNTOLD = variants(
    {
        "the paper text's objective": {"objective": "paper"},
        "negatives from the prior alone": {"uniform_share": 0.0},
        "4 negatives instead of 16": {"negatives": 4},
        "20 buckets instead of 80": {"buckets": 20},
        "V_max = 1,200 instead of the data's": {"bucket_range": "paper"},
        "early fusion": {"fusion": "early"},
        "threshold from the value model": {"source": "value_model"},
        "threshold from averaged logits": {"source": "prior_samples_logits"},
        "DFO with 1,024 samples": {"optimizer": "dfo", "samples": 1024},
        "Langevin": {"optimizer": "langevin"},
        "an action drawn from the policy": {"mode": "sample"},
        "vanilla RCRL, adaptive target": {"method": "vanilla"},
    }
)
"""One choice changed at a time; everything else as the kit plays it."""


def decisions(rows: pd.DataFrame) -> dict[str, Decision]:
    """The full model against each of Table 4's reduced ones."""
    return {
        name: judge(
            f"the full model earns more than {name}", rows, AS_PLAYED["br_rcrl"], wanted, INTERESTS[name].points
        )
        for name, wanted in PAPER_COMPONENTS.items()
        if name != "full model"
    }


def changes(rows: pd.DataFrame) -> dict[str, dict[str, Effect]]:
    """What every change does to the score, per dataset: minus the effects of `decisions`, seed for seed."""
    settings = {name: wanted for name, wanted in {**PAPER_COMPONENTS, **UNTOLD}.items() if name != "full model"}
    found = {name: effects(rows, wanted, AS_PLAYED["br_rcrl"]) for name, wanted in settings.items()}
    return {name: where for name, where in found.items() if where}


def significant(found: dict[str, dict[str, Effect]]) -> dict[str, dict[str, int]]:
    """1 or -1 for each change and dataset that is significant after Holm's correction over all of them, else 0."""
    flat = {f"{name}\n{dataset}": effect for name, where in found.items() for dataset, effect in where.items()}
    signs = directions(flat)
    return {name: {dataset: signs[f"{name}\n{dataset}"] for dataset in where} for name, where in found.items()}
