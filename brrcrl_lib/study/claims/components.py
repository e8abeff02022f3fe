"""Table 4: every component of the method matters; and the choices that the paper does not mention."""

from __future__ import annotations

import pandas as pd

from brrcrl_lib.study.claims.summary import judge_settings, variants
from brrcrl_lib.study.claims.verdicts import Effect, Verdict, compare
from brrcrl_lib.study.experiments.results import AS_PLAYED, order_datasets, select, short_name

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
        "the paper's objective": {"objective": "paper"},
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


def verdicts(rows: pd.DataFrame) -> dict[str, Verdict]:
    """The full model against each of Table 4's reduced ones."""
    return {
        name: judge_settings(f"the full model earns more than {name}", rows, AS_PLAYED["br_rcrl"], wanted)
        for name, wanted in PAPER_COMPONENTS.items()
        if name != "full model"
    }


def effects(rows: pd.DataFrame) -> dict[str, dict[str, Effect]]:
    """What every change does to the return, per dataset, on the training seeds that both sides have."""
    found: dict[str, dict[str, Effect]] = {}
    changes = {name: wanted for name, wanted in {**PAPER_COMPONENTS, **UNTOLD}.items() if name != "full model"}
    for dataset in order_datasets(rows["dataset"]):
        full = select(rows, dataset=dataset, **AS_PLAYED["br_rcrl"])
        for name, wanted in changes.items():
            changed = select(rows, dataset=dataset, **wanted)
            shared = full[full["train_seed"].isin(changed["train_seed"])]
            if not changed.empty and not shared.empty:
                found.setdefault(name, {})[short_name(dataset)] = compare(short_name(dataset), changed, shared)
    return found
