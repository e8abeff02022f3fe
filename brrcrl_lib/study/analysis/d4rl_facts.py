"""What is known of D4RL's own datasets (v2), to put beside ours: data/d4rl_facts.csv.

Nothing of it was measured here. Sizes are from D4RL's list of tasks; returns are what the Decision Transformer's loader
prints for these files, as quoted in public configurations of it. `brrcrl data card` measures an imported file anew.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass

from brrcrl_lib.base.files import ROOT
from brrcrl_lib.study.claims.scores import has_score, normalised_score
from brrcrl_lib.worlds import DatasetName


@dataclass(frozen=True)
class D4rlFacts:
    """One dataset of D4RL v2; returns are undiscounted."""

    world: str
    kind: str
    transitions: int
    return_mean: float
    return_max: float


def d4rl_facts(dataset_id: str) -> D4rlFacts | None:
    """The dataset of D4RL that `dataset_id` is our version of, if there is one."""
    name = DatasetName.parse(dataset_id)
    with (ROOT / "data" / "d4rl_facts.csv").open() as file:
        for row in csv.DictReader(file):
            if (row["world"], row["kind"]) == (name.world_name, name.kind):
                numbers = float(row["return_mean"]), float(row["return_max"])
                return D4rlFacts(row["world"], row["kind"], int(row["transitions"]), *numbers)
    return None


def with_score(dataset_id: str, value: float) -> str:
    """`1,422 (44.3)`: a return, and in brackets its normalised score where the world has one."""
    score = f" ({float(normalised_score(dataset_id, value)):.1f})" if has_score(dataset_id) else ""
    return f"{value:,.0f}{score}"
