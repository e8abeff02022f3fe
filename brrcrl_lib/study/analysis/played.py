"""What the policies of notebook 05 earn when they play here and now: both objectives, their priors alone, cloning."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from brrcrl_lib.data.vectors import OfflineDataset
from brrcrl_lib.evaluate import evaluate
from brrcrl_lib.study.claims.objectives import NAMES, POLICIES
from brrcrl_lib.training import Run


def play_all(
    models: Mapping[str, Run], data: OfflineDataset, delta: float, episodes: int = 10, max_steps: int | None = None
) -> pd.DataFrame:
    """One row per policy of `models` (by the names that a reader knows), like those of `objectives.label_results`."""
    rows = []
    for policy in POLICIES:
        name, alone = NAMES[policy.removesuffix(", mode")], policy.endswith(", mode")
        if name not in models:
            continue
        trained = models[name]
        how = {} if name == "cloning" else {"clone": True} if alone else {"delta": delta}
        player = trained.policy(trained.method.Act(**how), seed=0)
        found = evaluate(player, data.make_env, episodes=episodes, seed=1000, max_steps=max_steps)
        rows.append({"dataset": data.id, "policy": policy, "train_seed": trained.config.seed,
                     "return_mean": float(found.returns.mean())})  # fmt: skip
    return pd.DataFrame(rows)
