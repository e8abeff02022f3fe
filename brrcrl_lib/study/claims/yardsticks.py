"""What every table shows beside the methods: plain cloning, cloning of the best episodes, and who made the data."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd

from brrcrl_lib.base.files import ROOT
from brrcrl_lib.data.registry import dataset_folder, list_datasets, read_metadata
from brrcrl_lib.study.claims.rows import episode_returns, newest, recorded, source_of
from brrcrl_lib.study.claims.summary import line
from brrcrl_lib.study.experiments.results import AS_PLAYED, order_datasets, select
from brrcrl_lib.worlds import DatasetName, world_of

CLONING = {f"cloning, best {share:.0%}": {**AS_PLAYED["cloning"], "top_share": share} for share in (0.5, 0.2, 0.1)}
CLONING = {"cloning": AS_PLAYED["cloning"], **CLONING}
"""Cloning of all episodes and of the best share of them (%BC)."""
MAKER = "the policy that made the data"


def data_return(dataset: str) -> float | None:
    """Mean return of the episodes in a dataset, from its card; None where the dataset is not here."""
    name = DatasetName.parse(dataset)
    if name.world.kind == "pixels":
        card = ROOT / "data" / "atari" / f"{name.world_name}.json"
        if not card.exists():
            return None
        policies = json.loads(card.read_text())["sample"]["policies"]
        return float(np.mean([policy["fresh_return_mean"] for policy in policies]))  # equally many steps of each
    if dataset not in list_datasets():
        return None
    mean = read_metadata(dataset_folder(dataset)).get("card", {}).get("return_mean")
    return None if mean is None else float(mean)


def yardsticks(rows: pd.DataFrame) -> pd.DataFrame:
    """Lines like those of `summarise`, for every dataset of `rows`, from whichever recorded grid has them."""
    lines, datasets = [], order_datasets(newest(rows)["dataset"])
    known = {source: recorded(source) for source in set(map(source_of, datasets))}
    for dataset in datasets:
        for name, wanted in CLONING.items():
            chosen = select(known[source_of(dataset)], dataset=dataset, **wanted)
            if not chosen.empty:
                env = str(chosen["env"].iloc[0])
                lines.append(line(dataset, name, env, episode_returns(chosen).mean(axis=1)))
        made = data_return(dataset)
        if made is not None:
            lines.append(line(dataset, MAKER, world_of(dataset).env_id or "", np.array([made])))
    return pd.DataFrame(lines)
